//! Copies to and from memory that somebody outside this process changes at the same time.
//!
//! To the language such memory is no memory that a plain load may touch: an optimiser may read it twice and believe that
//! both times say the same, and a data race is undefined whatever is done with the value. So it is touched here only, by what
//! is defined for it: on x86-64 the processor's own string instructions, whose accesses the compiler neither sees nor invents,
//! repeats or drops; elsewhere relaxed atomic loads and stores, of words where the guest's side is aligned. What a guest
//! changes meanwhile makes the bytes unspecified, not the copy. (rust-vmm's `VolatileSlice` uses volatile accesses for up to a
//! word, and a plain `memcpy` beyond.)
//!
//! Either side may fault and block, for as long as whoever is behind that memory likes: call with no lock held that somebody
//! else needs.
#![allow(unsafe_code)]

/// Copies `len` bytes. Neither side need be aligned.
///
/// # Safety
/// Both ranges are mapped, the target's writable, and they do not overlap. No Rust reference to either's bytes is in use, but
/// for an exclusive one to the target or a shared one to the source.
#[inline]
pub unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's; the direction flag is clear on entry to every asm block, the registers are given as changed, and
    // the flags are not touched.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    unsafe {
        portable::copy(source, target, len);
    }
}

/// Fills `len` bytes with zeroes.
///
/// # Safety
/// As [`copy`], for its target.
#[inline]
pub unsafe fn zero(target: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `copy`.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") len => _,
            inout("rdi") target => _,
            in("al") 0u8,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's.
    unsafe {
        portable::zero(target, len);
    }
}

/// For every other processor. Both sides are accessed atomically: either may be the guest's.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};

    const WORD: usize = size_of::<u64>();

    pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
        let words = source as usize % WORD == target as usize % WORD;
        let mut at = 0;
        while at < len {
            let (from, to) = (source.wrapping_add(at), target.wrapping_add(at));
            if words && from as usize % WORD == 0 && len - at >= WORD {
                // SAFETY: in range, as the caller promises, and aligned, as was just checked; so is `to`, which has the same
                // rest. An atomic takes a pointer to mutable, and a load does not write through it.
                unsafe {
                    let word = AtomicU64::from_ptr(from.cast_mut().cast()).load(Ordering::Relaxed);
                    AtomicU64::from_ptr(to.cast()).store(word, Ordering::Relaxed);
                }
                at += WORD;
            } else {
                // SAFETY: in range; a byte has no alignment.
                unsafe {
                    let byte = AtomicU8::from_ptr(from.cast_mut()).load(Ordering::Relaxed);
                    AtomicU8::from_ptr(to).store(byte, Ordering::Relaxed);
                }
                at += 1;
            }
        }
    }

    pub(super) unsafe fn zero(target: *mut u8, len: usize) {
        let mut at = 0;
        while at < len {
            let to = target.wrapping_add(at);
            if to as usize % WORD == 0 && len - at >= WORD {
                // SAFETY: in range, as the caller promises, and aligned.
                unsafe { AtomicU64::from_ptr(to.cast()) }.store(0, Ordering::Relaxed);
                at += WORD;
            } else {
                // SAFETY: in range.
                unsafe { AtomicU8::from_ptr(to) }.store(0, Ordering::Relaxed);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copier = unsafe fn(*const u8, *mut u8, usize);
    type Zeroer = unsafe fn(*mut u8, usize);

    #[test]
    fn every_length_and_alignment_copies_exactly_its_bytes() {
        let source: Vec<u8> = (0..96u8).collect();
        let ways: [(Copier, Zeroer); 2] = [(copy, zero), (portable::copy, portable::zero)];
        for (copier, zeroer) in ways {
            for (from, to, len) in
                (0..9).flat_map(|f| (0..9).flat_map(move |t| (0..70).map(move |l| (f, t, l))))
            {
                let mut target = vec![0xee; 96];
                // SAFETY: both ranges lie in their vectors.
                unsafe { copier(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert!(target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xee));
                assert_eq!(target[to..to + len], source[from..from + len]);
                // SAFETY: in the vector.
                unsafe { zeroer(target.as_mut_ptr().add(to), len) };
                assert!(target[to..to + len].iter().all(|b| *b == 0));
                assert_eq!(target.iter().filter(|b| **b == 0).count(), len);
            }
        }
    }
}
