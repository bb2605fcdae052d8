//! The weight store: tiles of weights, found by the address of the tensor.
//!
//! A buffer holds weights in ggml's plain layout, as the host wrote them. When a weight is first used by a product it is
//! repacked (or its tiles are found in the [`RepackCache`]), and from then on its plain bytes are needed only by a host
//! that reads or changes them, and by other operations.
//!
//! ```text
//!                    first product                     nobody looks
//!   plain bytes  ──────────────────▶ tiles and bytes ──────────────▶ tiles
//!        ▲                                │   ▲                        │
//!        └────────── written ─────────────┘   └──── read, written ─────┘
//! ```
//!
//! Plain bytes are given back to the system only where tiles hold all of them, and not where another operation uses
//! them as well (a token embedding that is also the output matrix). Weights in a mapped file cost no memory of their own:
//! their pages are dropped and come back from the file.
//!
//! Where tiles are mapped segment by segment ([`runtime`](super::runtime)), those that nobody has shown are closed, and
//! nobody can read them.
//!
//! Locks, in the order in which they are taken: `plain`, `buffers` or `weights`, a weight's state, `queue` or `shown`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use llada_npu_ffi::Region;

use super::cache::RepackCache;
use super::key::{FileIdentity, Key};
use super::parallel::{Panicked, Parallel};
use super::shape::TileShape;
use super::tiles::Tiles;
use super::watch::{Watch, Watches};
use crate::sync::lock;

/// Where the bytes of a buffer come from.
pub enum Source {
    /// They were written by the host.
    Written,
    /// They are a file, mapped read-only.
    File {
        /// Which one.
        identity: FileIdentity,
        /// Drops pages (a range of bytes of the file) that are not needed for now; they come back when they are read.
        drop_pages: Box<dyn Fn(Range<usize>) + Send + Sync>,
    },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Written => f.write_str("Written"),
            Self::File { identity, .. } => f.debug_tuple("File").field(identity).finish(),
        }
    }
}

/// Whether and where tiles are kept.
#[derive(Debug)]
pub enum Keep {
    /// Nothing is repacked.
    Nothing,
    /// In memory of this process.
    Memory,
    /// In files that processes share, in memory where that fails.
    Cache(RepackCache),
}

#[derive(Debug)]
struct Buffer {
    region: Arc<Region>,
    source: Source,
}

/// One weight that was used by a product.
#[derive(Debug)]
struct Weight {
    address: usize,
    shape: TileShape,
    buffer: Arc<Buffer>,
    /// Whether other operations read the plain bytes.
    plain_in_use: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tiles: Option<Arc<Tiles>>,
    /// The plain bytes have been given back.
    is_released: bool,
    /// Tiles could not be made; it is not tried again.
    has_failed: bool,
}

/// The weights of all buffers of the device.
#[derive(Debug)]
pub struct WeightStore {
    keep: Keep,
    buffers: Mutex<BTreeMap<usize, Arc<Buffer>>>,
    weights: Mutex<BTreeMap<usize, Arc<Weight>>>,
    /// Read while plain bytes are used, written while they are given back.
    plain: RwLock<()>,
    /// Addresses of tensors that other operations than products read.
    plain_users: Mutex<BTreeSet<usize>>,
    /// Weights whose plain bytes can be given back.
    queue: Mutex<Vec<Arc<Weight>>>,
    n_queued: AtomicUsize,
    n_released: AtomicUsize,
    /// By how many the tiles of a weight are shown, by its address; `None` as long as nobody has shown or hidden any.
    shown: Mutex<Option<BTreeMap<usize, usize>>>,
    watches: Watches,
}

/// The store, while no plain bytes are given back.
#[derive(Debug)]
pub struct PlainGuard<'a> {
    store: &'a WeightStore,
    #[expect(dead_code, reason = "held, not read")]
    lock: RwLockReadGuard<'a, ()>,
}

impl WeightStore {
    /// Makes an empty store.
    #[must_use]
    pub fn new(keep: Keep) -> Self {
        Self {
            keep,
            buffers: Mutex::default(),
            weights: Mutex::default(),
            plain: RwLock::default(),
            plain_users: Mutex::default(),
            queue: Mutex::default(),
            n_queued: AtomicUsize::new(0),
            n_released: AtomicUsize::new(0),
            shown: Mutex::default(),
            watches: Watches::default(),
        }
    }

    /// Lets the tiles of the weight at `address` be read, those there are and those that will be. Every call is undone by
    /// one of [`Self::hide`].
    pub fn show(&self, address: usize) {
        let tiles = self.tiles_at(address);
        let mut shown = lock(&self.shown);
        *shown.get_or_insert_default().entry(address).or_insert(0) += 1;
        if let Some(tiles) = tiles {
            tiles.open();
        }
    }

    /// Undoes one call of [`Self::show`]: when nobody shows the tiles any more, nobody can read them.
    pub fn hide(&self, address: usize) {
        let tiles = self.tiles_at(address);
        let mut shown = lock(&self.shown);
        let shown = shown.get_or_insert_default();
        let n_left = shown.get(&address).map_or(0, |n| n - 1);
        if n_left > 0 {
            shown.insert(address, n_left);
            return;
        }
        shown.remove(&address);
        if let Some(tiles) = tiles {
            tiles.close();
        }
    }

    fn tiles_at(&self, address: usize) -> Option<Arc<Tiles>> {
        let weight = lock(&self.weights).get(&address).map(Arc::clone)?;
        let state = lock(&weight.state);
        state.tiles.clone()
    }

    /// Runs `read`, which reads tiles that may be closed.
    fn opened<R>(&self, address: usize, tiles: &Tiles, read: impl FnOnce() -> R) -> R {
        let shown = lock(&self.shown);
        tiles.open();
        let result = read();
        if let Some(shown) = &*shown
            && !shown.contains_key(&address)
        {
            tiles.close();
        }
        result
    }

    /// Tells whether weights are repacked at all.
    #[must_use]
    pub fn repacks(&self) -> bool {
        !matches!(self.keep, Keep::Nothing)
    }

    /// Takes notice of a new buffer.
    pub fn add_buffer(&self, region: Arc<Region>, source: Source) {
        let address = region.address();
        lock(&self.buffers).insert(address, Arc::new(Buffer { region, source }));
    }

    /// Forgets a buffer that is about to go, and all weights in it.
    pub fn remove_buffer(&self, region: &Region) {
        let (start, end) = (region.address(), region.address() + region.size_bytes());
        lock(&self.buffers).remove(&start);
        self.watches.changed(start, end - start);
        for weight in self.take(start, end - start) {
            // Nobody will ask for its plain bytes.
            self.forget(&weight);
        }
        lock(&self.plain_users).retain(|address| !(start..end).contains(address));
    }

    fn forget(&self, weight: &Weight) {
        let mut state = lock(&weight.state);
        state.tiles = None;
        if std::mem::take(&mut state.is_released) {
            self.n_released.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns a guard to hold while plain bytes are used. Plain bytes that nobody needs are given back before, if nobody
    /// else holds one.
    pub fn plain(&self) -> PlainGuard<'_> {
        self.release_queued();
        PlainGuard {
            store: self,
            lock: self.plain.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Returns the record of a weight, made anew where another shape was there.
    fn weight(&self, address: usize, shape: &TileShape) -> Option<Arc<Weight>> {
        if let Some(weight) = lock(&self.weights).get(&address)
            && weight.shape == *shape
        {
            return Some(Arc::clone(weight));
        }
        let size_bytes = shape.plain_size_bytes();
        let buffer = self.buffer(address, size_bytes)?;
        self.change(address, size_bytes, false);
        let plain_in_use = lock(&self.plain_users).contains(&address).into();
        let weight = Arc::new(Weight {
            address,
            shape: *shape,
            buffer,
            plain_in_use,
            state: Mutex::default(),
        });
        let mut weights = lock(&self.weights);
        let there = weights.entry(address).or_insert(weight);
        (there.shape == *shape).then(|| Arc::clone(there))
    }

    fn buffer(&self, address: usize, size_bytes: usize) -> Option<Arc<Buffer>> {
        let buffers = lock(&self.buffers);
        let (base, buffer) = buffers.range(..=address).next_back()?;
        let end = (address - base).checked_add(size_bytes)?;
        (end <= buffer.region.size_bytes()).then(|| Arc::clone(buffer))
    }

    fn make(&self, weight: &Weight, plain: &[u8], parallel: &mut dyn Parallel) -> Option<Tiles> {
        let shape = &weight.shape;
        let made = match &self.keep {
            Keep::Nothing => return None,
            Keep::Memory => None,
            Keep::Cache(cache) => {
                let key = weight.key(plain, parallel).ok()?;
                let fill = |chunk: usize, tiles: &mut [u8]| shape.pack_chunk(chunk, plain, tiles);
                cache
                    .load(key, shape, parallel)
                    .or_else(|| cache.store(key, shape, &fill, parallel))
            }
        };
        made.or_else(|| pack_in_memory(shape, plain, parallel))
    }

    /// Decides what becomes of the plain bytes of a weight that has tiles.
    fn settle(&self, weight: &Arc<Weight>) {
        let size_bytes = weight.shape.plain_size_bytes();
        match &weight.buffer.source {
            Source::File { drop_pages, .. } => {
                let start = weight.address - weight.buffer.region.address();
                drop_pages(start..start + size_bytes);
            }
            Source::Written if weight.shape.restores_plain() => {
                lock(&self.queue).push(Arc::clone(weight));
                self.n_queued.fetch_add(1, Ordering::Relaxed);
            }
            Source::Written => {}
        }
    }

    /// Gives plain bytes back, if nobody uses any now.
    fn release_queued(&self) {
        if self.n_queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Ok(_alone) = self.plain.try_write() else {
            return;
        };
        let queue = std::mem::take(&mut *lock(&self.queue));
        self.n_queued.fetch_sub(queue.len(), Ordering::Relaxed);
        for weight in queue {
            let mut state = lock(&weight.state);
            let in_use = weight.plain_in_use.load(Ordering::Relaxed);
            if state.tiles.is_none() || state.is_released || in_use {
                continue;
            }
            if weight.release() {
                state.is_released = true;
                self.n_released.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Runs `copy`, which reads the plain bytes of a range for the host.
    pub fn reading<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        let _guard = self.plain();
        self.restore(address, size_bytes);
        copy()
    }

    /// Runs `copy`, which writes plain bytes of a range, some or all, for the host.
    pub fn writing<R>(&self, address: usize, size_bytes: usize, copy: impl FnOnce() -> R) -> R {
        let _guard = self.plain();
        self.watches.changed(address, size_bytes);
        self.change(address, size_bytes, true);
        copy()
    }

    /// Forgets the weights that a range touches; their plain bytes are restored first, unless `replaces` says that those
    /// inside the range do not matter any more.
    fn change(&self, address: usize, size_bytes: usize, replaces: bool) {
        for weight in self.take(address, size_bytes) {
            let end = weight.address + weight.shape.plain_size_bytes();
            let is_inside = address <= weight.address && end <= address.saturating_add(size_bytes);
            if !(replaces && is_inside) {
                self.restore_weight(&weight);
            }
            self.forget(&weight);
        }
    }

    fn restore(&self, address: usize, size_bytes: usize) {
        if self.n_released.load(Ordering::Relaxed) == 0 {
            return;
        }
        for weight in self.touching(address, size_bytes) {
            self.restore_weight(&weight);
        }
    }

    fn restore_weight(&self, weight: &Weight) {
        let mut state = lock(&weight.state);
        if !state.is_released {
            return;
        }
        let tiles = state.tiles.as_ref().expect("released bytes are in tiles");
        self.opened(weight.address, tiles, || weight.restore(tiles));
        state.is_released = false;
        self.n_released.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the weights that a range touches.
    fn touching(&self, address: usize, size_bytes: usize) -> Vec<Arc<Weight>> {
        let weights = lock(&self.weights);
        touching(&weights, address, size_bytes)
            .map(|address| Arc::clone(&weights[&address]))
            .collect()
    }

    /// Takes the weights out that a range touches.
    fn take(&self, address: usize, size_bytes: usize) -> Vec<Arc<Weight>> {
        let mut weights = lock(&self.weights);
        let addresses: Vec<usize> = touching(&weights, address, size_bytes).collect();
        addresses
            .iter()
            .filter_map(|address| weights.remove(address))
            .collect()
    }
}

impl PlainGuard<'_> {
    /// Tells whether weights are repacked at all.
    #[must_use]
    pub fn repacks(&self) -> bool {
        self.store.repacks()
    }

    /// Returns the tiles of the weight at `address`, whose plain bytes are `plain`, repacking it if need be. `None` where
    /// it has to be used as it is: outside the device's buffers, or without memory for tiles.
    ///
    /// The contents of `plain` are read only if there are no tiles yet.
    pub fn tiles(
        &self,
        address: usize,
        shape: &TileShape,
        plain: &[u8],
        parallel: &mut dyn Parallel,
    ) -> Option<Arc<Tiles>> {
        if !self.store.repacks() || plain.len() != shape.plain_size_bytes() {
            return None;
        }
        let weight = self.store.weight(address, shape)?;
        let mut state = lock(&weight.state);
        if state.tiles.is_none() && !state.has_failed {
            state.tiles = self.store.make(&weight, plain, parallel).map(Arc::new);
            state.has_failed = state.tiles.is_none();
            if state.tiles.is_some() {
                self.store.settle(&weight);
            }
        }
        state.tiles.clone()
    }

    /// Returns what tells when the bytes of a weight change, or go. `None` outside the device's buffers: nobody tells us then.
    #[must_use]
    pub fn watch(&self, address: usize, size_bytes: usize) -> Option<Arc<Watch>> {
        self.store.buffer(address, size_bytes)?;
        Some(self.store.watches.watch(address, size_bytes))
    }

    /// Tells whether somebody wants to know of changes.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        !self.store.watches.is_empty()
    }

    /// Drops the pages of a weight that lies in a mapped file; they come back when they are read. Tells whether it does.
    pub fn drop_pages(&self, address: usize, size_bytes: usize) -> bool {
        let Some(buffer) = self.store.buffer(address, size_bytes) else {
            return false;
        };
        let Source::File { drop_pages, .. } = &buffer.source else {
            return false;
        };
        let start = address - buffer.region.address();
        drop_pages(start..start + size_bytes);
        true
    }

    /// Makes sure that the plain bytes of a range hold what was written, for an operation that reads them.
    ///
    /// `is_weight`: whether they are a whole tensor that could have tiles; its plain bytes are then kept for good.
    pub fn use_plain(&self, address: usize, size_bytes: usize, is_weight: bool) {
        if is_weight
            && lock(&self.store.plain_users).insert(address)
            && let Some(weight) = lock(&self.store.weights).get(&address)
        {
            weight.plain_in_use.store(true, Ordering::Relaxed);
        }
        self.store.restore(address, size_bytes);
    }

    /// Forgets the tiles of the weights in a range that an operation is about to write.
    pub fn written(&self, address: usize, size_bytes: usize) {
        self.store.watches.changed(address, size_bytes);
        self.store.change(address, size_bytes, false);
    }
}

/// Returns the addresses of the weights that a range touches. Weights do not overlap.
fn touching(
    weights: &BTreeMap<usize, Arc<Weight>>,
    address: usize,
    size_bytes: usize,
) -> impl Iterator<Item = usize> {
    weights
        .range(..address.saturating_add(size_bytes))
        .rev()
        .take_while(move |(_, w)| address < w.address + w.shape.plain_size_bytes())
        .map(|(&address, _)| address)
}

impl Weight {
    fn key(&self, plain: &[u8], parallel: &mut dyn Parallel) -> Result<Key, Panicked> {
        match &self.buffer.source {
            Source::Written => Key::of_content(plain, &self.shape, parallel),
            Source::File { identity, .. } => {
                let offset = self.address - self.buffer.region.address();
                Ok(Key::of_file(identity, offset, &self.shape))
            }
        }
    }

    /// Gives the plain bytes back. The caller holds `plain` for writing.
    #[expect(
        unsafe_code,
        reason = "bytes of a buffer belong to whoever has the locks"
    )]
    fn release(&self) -> bool {
        let size_bytes = self.shape.plain_size_bytes();
        // SAFETY: whoever reads or writes plain bytes holds `plain` for reading, and restores them first.
        unsafe { self.buffer.region.release(self.address, size_bytes) > 0 }
    }

    /// Writes the plain bytes anew. The caller holds the weight's state, and `plain` for reading.
    #[expect(
        unsafe_code,
        reason = "bytes of a buffer belong to whoever has the locks"
    )]
    fn restore(&self, tiles: &Tiles) {
        let size_bytes = self.shape.plain_size_bytes();
        // SAFETY: whoever wants to read the bytes waits for the state, to see whether they are there; a host writes a
        // tensor only while nobody else uses it.
        let plain = unsafe { self.buffer.region.bytes_mut(self.address, size_bytes) }
            .expect("released bytes are inside a writable buffer");
        for chunk in 0..self.shape.n_chunks() {
            let rows = &mut plain[self.shape.chunk_plain_bytes(chunk)];
            self.shape.unpack_chunk(chunk, tiles.bytes(), rows);
        }
    }
}

fn pack_in_memory(shape: &TileShape, plain: &[u8], parallel: &mut dyn Parallel) -> Option<Tiles> {
    let mut tiles = Tiles::in_memory(shape)?;
    let chunks: Vec<Mutex<&mut [u8]>> = split_chunks(shape, tiles.bytes_mut()?);
    parallel
        .for_each_item(chunks.len(), &|chunk| {
            shape.pack_chunk(chunk, plain, &mut lock(&chunks[chunk]));
        })
        .ok()?;
    drop(chunks);
    Some(tiles)
}

fn split_chunks<'a>(shape: &TileShape, mut tiles: &'a mut [u8]) -> Vec<Mutex<&'a mut [u8]>> {
    (0..shape.n_chunks())
        .map(|chunk| {
            let (first, rest) =
                std::mem::take(&mut tiles).split_at_mut(shape.chunk_bytes(chunk).len());
            tiles = rest;
            Mutex::new(first)
        })
        .collect()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
