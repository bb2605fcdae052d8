#![expect(unsafe_code, reason = "tests write to buffers as hosts do")]

use llada_npu_ffi::{StableBytes, page_size};

use super::*;
use crate::memory::parallel::Caller;
use crate::memory::shape::byte;

/// `Q8_0`, more than one chunk; `F16`; and a type whose tiles do not hold its blocks.
fn shapes() -> [TileShape; 3] {
    [
        TileShape::for_tests(4096, 1001, 1),
        TileShape::new(1, 64, 45, 3).unwrap(),
        TileShape::new(12, 256, 100, 2).unwrap(),
    ]
}

fn contents(shape: &TileShape, seed: usize) -> Vec<u8> {
    (0..shape.plain_size_bytes())
        .map(|i| byte(i * 31 + i / 977 + seed))
        .collect()
}

fn tiles_of(shape: &TileShape, plain: &[u8]) -> Vec<u8> {
    let mut tiles = vec![0; shape.size_bytes()];
    for chunk in 0..shape.n_chunks() {
        shape.pack_chunk(chunk, plain, &mut tiles[shape.chunk_bytes(chunk)]);
    }
    tiles
}

/// A store with one buffer, in which weights are written and read as by a host.
struct Host {
    store: WeightStore,
    region: Arc<Region>,
}

impl Host {
    fn new(keep: Keep) -> Self {
        let store = WeightStore::new(keep);
        let region = Arc::new(Region::anonymous(16 << 20).unwrap());
        store.add_buffer(Arc::clone(&region), Source::Written);
        Self { store, region }
    }

    fn address(&self, offset: usize) -> usize {
        self.region.address() + offset
    }

    #[expect(clippy::mut_from_ref, reason = "a test uses one slice at a time")]
    fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: a test uses one slice at a time, on one thread.
        unsafe { self.region.bytes_mut(self.address(offset), len) }.unwrap()
    }

    fn set(&self, offset: usize, data: &[u8]) {
        self.store.writing(self.address(offset), data.len(), || {
            self.bytes(offset, data.len()).copy_from_slice(data);
        });
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        self.store.reading(self.address(offset), len, || {
            self.bytes(offset, len).to_vec()
        })
    }

    fn tiles(&self, offset: usize, shape: &TileShape) -> Option<Arc<Tiles>> {
        let guard = self.store.plain();
        let plain = self.bytes(offset, shape.plain_size_bytes());
        guard.tiles(self.address(offset), shape, plain, &mut Caller)
    }

    /// Bytes of the range that are still there in plain form, by looking past the store.
    fn n_plain(&self, offset: usize, expected: &[u8]) -> usize {
        let plain = self.bytes(offset, expected.len());
        plain.iter().zip(expected).filter(|(a, b)| a == b).count()
    }
}

#[test]
fn a_weight_is_packed_once_and_its_plain_bytes_are_given_back_where_tiles_hold_them() {
    for shape in shapes() {
        let host = Host::new(Keep::Memory);
        let plain = contents(&shape, 1);
        let offset = 64;
        host.set(offset, &plain);
        let tiles = host.tiles(offset, &shape).unwrap();
        assert!(tiles.bytes() == tiles_of(&shape, &plain));
        assert!(!tiles.is_mapped());
        assert!(Arc::ptr_eq(&tiles, &host.tiles(offset, &shape).unwrap()));
        let is_large = plain.len() > 3 * page_size();
        let n_plain = host.n_plain(offset, &plain);
        assert_eq!(
            n_plain < plain.len() / 2,
            shape.restores_plain() && is_large,
            "{n_plain} of {}",
            plain.len()
        );
        // Exact, whole or in part, and the tiles stay.
        assert_eq!(host.get(offset + 7, 5), plain[7..12]);
        assert!(host.get(offset, plain.len()) == plain);
        assert!(Arc::ptr_eq(&tiles, &host.tiles(offset, &shape).unwrap()));
    }
}

#[test]
fn partial_writes_keep_the_rest_and_are_packed_anew() {
    for shape in shapes() {
        let host = Host::new(Keep::Memory);
        let mut plain = contents(&shape, 1);
        host.set(0, &plain);
        // What lies before and behind is nobody's business.
        let behind = plain.len() + 13;
        host.set(behind, &[0xaa; 40]);
        let first = host.tiles(0, &shape).unwrap();
        // Twice: the second finds the plain bytes there.
        for (at, len) in [(shape.plain_size_bytes() / 2 + 3, 70), (0, 1)] {
            let change: Vec<u8> = (0..len).map(|i| byte(i) ^ 0x5a).collect();
            host.set(at, &change);
            plain[at..at + len].copy_from_slice(&change);
        }
        assert!(host.get(0, plain.len()) == plain);
        let second = host.tiles(0, &shape).unwrap();
        assert!(second.bytes() == tiles_of(&shape, &plain));
        assert!(first.bytes() != second.bytes());
        assert_eq!(host.get(behind, 40), [0xaa; 40]);
        drop(host.store.plain());
        // A write over everything does not restore anything first.
        let plain = contents(&shape, 9);
        host.set(0, &plain);
        assert!(host.get(0, plain.len()) == plain);
        assert_eq!(host.store.n_released.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn operations_that_read_plain_bytes_find_them_and_keep_them() {
    let [shape, ..] = shapes();
    let host = Host::new(Keep::Memory);
    let plain = contents(&shape, 3);
    host.set(0, &plain);
    host.tiles(0, &shape).unwrap();
    drop(host.store.plain());
    assert_eq!(host.store.n_released.load(Ordering::Relaxed), 1);
    let guard = host.store.plain();
    guard.use_plain(host.address(0), plain.len(), true);
    drop(guard);
    assert_eq!(host.n_plain(0, &plain), plain.len());
    // Used by others first: never given back.
    let offset = 8 << 20;
    host.set(offset, &plain);
    let guard = host.store.plain();
    guard.use_plain(host.address(offset), plain.len(), true);
    drop(guard);
    host.tiles(offset, &shape).unwrap();
    drop(host.store.plain());
    assert_eq!(host.n_plain(offset, &plain), plain.len());
    assert_eq!(host.store.n_released.load(Ordering::Relaxed), 0);
}

#[test]
fn nothing_is_given_back_while_somebody_reads() {
    let [shape, ..] = shapes();
    let host = Host::new(Keep::Memory);
    let plain = contents(&shape, 3);
    host.set(0, &plain);
    let reader = host.store.plain();
    host.tiles(0, &shape).unwrap();
    drop(host.store.plain());
    assert_eq!(host.n_plain(0, &plain), plain.len());
    drop(reader);
    drop(host.store.plain());
    assert_ne!(host.n_plain(0, &plain), plain.len());
}

#[test]
fn results_of_operations_replace_tiles() {
    let [shape, ..] = shapes();
    let host = Host::new(Keep::Memory);
    let mut plain = contents(&shape, 3);
    host.set(0, &plain);
    host.tiles(0, &shape).unwrap();
    let guard = host.store.plain();
    // One row in the middle, by an operation that writes to memory itself.
    guard.written(host.address(5000), 100);
    host.bytes(5000, 100).fill(1);
    drop(guard);
    plain[5000..5100].fill(1);
    assert!(host.tiles(0, &shape).unwrap().bytes() == tiles_of(&shape, &plain));
    assert!(host.get(0, plain.len()) == plain);
}

#[test]
fn a_buffer_takes_its_weights_along() {
    let [shape, ..] = shapes();
    let host = Host::new(Keep::Memory);
    host.set(0, &contents(&shape, 3));
    host.tiles(0, &shape).unwrap();
    drop(host.store.plain());
    host.store.remove_buffer(&host.region);
    assert!(lock(&host.store.weights).is_empty());
    assert_eq!(host.store.n_released.load(Ordering::Relaxed), 0);
    // Memory that is not ours.
    assert!(host.tiles(0, &shape).is_none());
}

#[test]
fn another_shape_at_the_same_place_is_another_weight() {
    let [shape, ..] = shapes();
    let other = TileShape::for_tests(2048, 2002, 1);
    assert_eq!(other.plain_size_bytes(), shape.plain_size_bytes());
    let host = Host::new(Keep::Memory);
    let plain = contents(&shape, 3);
    host.set(0, &plain);
    host.tiles(0, &shape).unwrap();
    drop(host.store.plain());
    let guard = host.store.plain();
    // As the backend does for a product whose weight it cannot find.
    let restored = host.store.weight(host.address(0), &other).unwrap();
    drop((guard, restored));
    assert_eq!(host.n_plain(0, &plain), plain.len());
    assert!(host.tiles(0, &other).unwrap().bytes() == tiles_of(&other, &plain));
}

#[test]
fn a_second_store_finds_the_tiles_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let keep = || Keep::Cache(RepackCache::new(dir.path().to_owned(), 1 << 30));
    for shape in shapes() {
        let plain = contents(&shape, 3);
        let expected = tiles_of(&shape, &plain);
        for _ in 0..2 {
            let host = Host::new(keep());
            host.set(128, &plain);
            let tiles = host.tiles(128, &shape).unwrap();
            assert!(tiles.is_mapped() && tiles.bytes() == expected);
            drop(host.store.plain());
            assert!(host.get(128, plain.len()) == plain);
        }
    }
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    assert_eq!(cache.contents().unwrap().n_files, shapes().len());
}

#[test]
fn without_a_usable_cache_tiles_are_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    // A file in the directory's place; and room for nothing.
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let caches = [
        RepackCache::new(file, 1 << 30),
        RepackCache::new(dir.path().join("small"), 100),
    ];
    for cache in caches {
        let host = Host::new(Keep::Cache(cache));
        for (i, shape) in shapes().into_iter().enumerate() {
            let plain = contents(&shape, i);
            host.set(0, &plain);
            let tiles = host.tiles(0, &shape).unwrap();
            assert!(!tiles.is_mapped() && tiles.bytes() == tiles_of(&shape, &plain));
        }
    }
    let host = Host::new(Keep::Nothing);
    assert!(host.tiles(0, &shapes()[0]).is_none());
}

#[test]
fn a_mapped_file_is_not_read_when_its_tiles_are_cached() {
    /// Bytes that stand for a mapped file.
    struct Mapped(Vec<u8>);
    // SAFETY: a vector that nobody changes stays where it is.
    unsafe impl StableBytes for Mapped {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let model = tempfile::NamedTempFile::new().unwrap();
    let identity = FileIdentity::new(&model.as_file().metadata().unwrap(), b"GGUF");
    let [shape, ..] = shapes();
    let plain = contents(&shape, 3);
    let dropped = Arc::new(Mutex::new(Vec::new()));
    for is_second in [false, true] {
        let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
        let store = WeightStore::new(Keep::Cache(cache));
        // The second time the "file" holds other bytes, which must not be looked at.
        let mut bytes = vec![0; 32 + plain.len()];
        if !is_second {
            bytes[32..].copy_from_slice(&plain);
        }
        let bytes = Arc::new(Mapped(bytes));
        let region = Arc::new(Region::shared(Arc::clone(&bytes) as Arc<dyn StableBytes>));
        let pages = Arc::clone(&dropped);
        let source = Source::File {
            identity,
            drop_pages: Box::new(move |range| lock(&pages).push(range)),
        };
        store.add_buffer(Arc::clone(&region), source);
        let guard = store.plain();
        let address = region.address() + 32;
        let tiles = guard
            .tiles(address, &shape, &bytes.0[32..], &mut Caller)
            .unwrap();
        assert!(tiles.is_mapped() && tiles.bytes() == tiles_of(&shape, &plain));
    }
    let range = 32..32 + plain.len();
    assert_eq!(*lock(&dropped), [range.clone(), range]);
}

#[test]
fn weights_are_found_by_any_byte_of_theirs() {
    let host = Host::new(Keep::Memory);
    let shape = TileShape::for_tests(64, 32, 1);
    let size = shape.plain_size_bytes();
    for i in 0..3 {
        host.set(i * (size + 10), &contents(&shape, i));
        host.tiles(i * (size + 10), &shape).unwrap();
    }
    let touched = |offset: usize, len: usize| -> Vec<usize> {
        let mut offsets: Vec<_> = host
            .store
            .touching(host.address(offset), len)
            .iter()
            .map(|weight| (weight.address - host.region.address()) / (size + 10))
            .collect();
        offsets.sort_unstable();
        offsets
    };
    assert_eq!(touched(0, 3 * (size + 10)), [0, 1, 2]);
    assert_eq!(touched(size - 1, 1), [0]);
    assert_eq!(touched(size, 10), [0; 0]);
    assert_eq!(touched(size, 11), [1]);
    assert_eq!(touched(0, usize::MAX), [0, 1, 2]);
}
