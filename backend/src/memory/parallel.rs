//! Work that is shared among threads.

/// An item failed by a panic: not all items have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// Threads that run the items of a loop; memory below does not know where they come from.
pub trait Parallel {
    /// Runs `body(i)` for every `i` below `n_items`, on any thread and in any order, and returns when all are done.
    ///
    /// # Errors
    /// When an item panics: no more items are started, and those running have ended.
    fn for_each_item(
        &mut self,
        n_items: usize,
        body: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Panicked>;
}

/// The calling thread alone.
#[derive(Clone, Copy, Debug)]
pub struct Caller;

impl Parallel for Caller {
    fn for_each_item(
        &mut self,
        n_items: usize,
        body: &(dyn Fn(usize) + Sync),
    ) -> Result<(), Panicked> {
        (0..n_items).for_each(body);
        Ok(())
    }
}
