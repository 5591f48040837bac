//! Requests in flight below, named by small integers that serve as their tokens there.

use afterimage_block::Token;

/// A slab.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> Token {
        match self.free.pop() {
            Some(i) => {
                self.entries[i as usize] = Some(value);
                Token(u64::from(i))
            }
            None => {
                self.entries.push(Some(value));
                Token(self.entries.len() as u64 - 1)
            }
        }
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.entries.get_mut(token.0 as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let value = self.entries.get_mut(token.0 as usize)?.take()?;
        self.free.push(token.0 as u32);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
