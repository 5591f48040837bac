//! What a directory's index is ordered by (`fs/ext4/hash.c`; half of MD4 as in RFC 1320, and TEA, Wheeler and Needham 1994).

/// Legacy.
const LEGACY: u8 = 0;
/// Half of MD4, the default.
const HALF_MD4: u8 = 1;
/// TEA.
const TEA: u8 = 2;
/// The largest value stands for the end of a directory.
const END: u32 = 0xffff_fffe;

/// The words of a part of a name: its bytes, most significant first, where any are missing behind padding that is made of the part's length.
fn words(name: &[u8], unsigned: bool, words: &mut [u32]) {
    let pad = (name.len() as u32) | (name.len() as u32) << 8;
    let pad = pad | pad << 16;
    let wide = |byte: u8| if unsigned { u32::from(byte) } else { byte as i8 as u32 };
    words.fill(pad);
    for (word, bytes) in words.iter_mut().zip(name.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| wide(byte).wrapping_add(word << 8));
    }
}

fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Choice = fn(u32, u32, u32) -> u32;
    let rounds: [(Choice, u32, [usize; 8], [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (|x, y, z| (x & y) | (z & (x | y)), 0x5A82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (|x, y, z| x ^ y ^ z, 0x6ED9_EBA1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (choice, constant, order, shifts) in rounds {
        for (i, &word) in order.iter().enumerate() {
            let sum = a.wrapping_add(choice(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[i % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

fn tea(state: &mut [u32; 4], input: &[u32; 4]) {
    let (mut sum, mut v0, mut v1) = (0u32, state[0], state[1]);
    let mix = |v: u32, k0: u32, k1: u32, sum: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        v0 = v0.wrapping_add(mix(v1, input[0], input[1], sum));
        v1 = v1.wrapping_add(mix(v0, input[2], input[3], sum));
    }
    state[0] = state[0].wrapping_add(v0);
    state[1] = state[1].wrapping_add(v1);
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut before, mut hash) = (0x37ab_e8f9_u32, 0x12a3_fe2d_u32);
    for &byte in name {
        let wide = if unsigned { i32::from(byte) } else { i32::from(byte as i8) };
        let mut next = before.wrapping_add(hash ^ wide.wrapping_mul(7_152_373) as u32);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, hash) = (hash, next);
    }
    hash << 1
}

/// A name's hash; `None` for a kind that is not known. Its lowest bit is 0.
pub(crate) fn hash(kind: u8, unsigned: bool, seed: [u32; 4], name: &[u8]) -> Option<u32> {
    let mut state = match seed {
        [0, 0, 0, 0] => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
        seed => seed,
    };
    let parts = |bytes: usize| (0..name.len().max(1).div_ceil(bytes)).map(move |i| &name[i * bytes..]);
    let hash = match kind {
        LEGACY => legacy(name, unsigned),
        HALF_MD4 => {
            for part in parts(32) {
                let mut input = [0; 8];
                words(&part[..part.len().min(32)], unsigned, &mut input);
                half_md4(&mut state, &input);
            }
            state[1]
        }
        TEA => {
            for part in parts(16) {
                let mut input = [0; 4];
                words(&part[..part.len().min(16)], unsigned, &mut input);
                tea(&mut state, &input);
            }
            state[0]
        }
        _ => return None,
    };
    let hash = hash & !1;
    Some(if hash == END { END - 2 } else { hash })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use afterimage_testing::skip;

    use super::*;

    #[test]
    fn names_hash_as_e2fsprogs_has_it() {
        let names = [
            "a",
            "four",
            "name8888",
            "sixteen letters!",
            "seventeen letters",
            "exactly thirty-two letters, so: ",
            "a name of more than thirty-two letters, of which some are in the second part",
            "\u{e9}\u{fc}\u{df} beyond ASCII",
        ];
        let uuid = "01020304-0506-0708-090a-0b0c0d0e0f10";
        let seed = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
        for (kind, algorithm) in ["legacy", "half_md4", "tea"].into_iter().enumerate() {
            for name in names {
                let command = format!("dx_hash -h {algorithm} -s {uuid} \"{name}\"");
                let output = match Command::new("debugfs").args(["-R", &command]).output() {
                    Ok(output) => output,
                    Err(error) => return skip(format!("running debugfs: {error}")),
                };
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let found = hash(kind as u8, false, seed, name.as_bytes()).unwrap();
                assert!(said.contains(&format!("is 0x{found:x} ")), "{command}: {found:#x}, not {said}");
                let same = hash(kind as u8, true, seed, name.as_bytes()) == Some(found);
                assert_eq!(same, name.is_ascii(), "{name}: only bytes beyond ASCII differ");
            }
        }
        assert_eq!(hash(6, false, seed, b"x"), None);
    }
}
