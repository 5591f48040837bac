//! Names for requests and their parts while they are in flight.

/// A slab: stable small indices for values that come and go.
#[derive(Debug)]
pub(super) struct Slots<T> {
    values: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(super) fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(at) => {
                self.values[at] = Some(value);
                at
            }
            None => {
                self.values.push(Some(value));
                self.values.len() - 1
            }
        }
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.values.get_mut(at)?.as_mut()
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<T> {
        let value = self.values.get_mut(at)?.take();
        if value.is_some() {
            self.free.push(at);
        }
        value
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}
