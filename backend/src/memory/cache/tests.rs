use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use super::*;
use crate::memory::parallel::Caller;

const KEY: Key = Key([1; 16]);

fn shape() -> TileShape {
    TileShape::for_tests(4096, 1000, 1)
}

fn fill(chunk: usize, tiles: &mut [u8]) {
    for (i, byte) in tiles.iter_mut().enumerate() {
        *byte = crate::memory::shape::byte(i * 7 + chunk);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_stored_is_loaded_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    // Not there yet.
    let cache = RepackCache::new(dir.path().join("a/b"), 1 << 30);
    assert_eq!(cache.contents().unwrap(), Contents::default());
    assert!(cache.load(KEY, &shape(), &mut Caller).is_none());
    let stored = cache.store(KEY, &shape(), &fill, &mut Caller).unwrap();
    let loaded = cache.load(KEY, &shape(), &mut Caller).unwrap();
    assert!(stored.is_mapped() && loaded.is_mapped());
    let mut expected = vec![0; shape().size_bytes()];
    for chunk in 0..shape().n_chunks() {
        fill(chunk, &mut expected[shape().chunk_bytes(chunk)]);
    }
    assert!(shape().n_chunks() > 2);
    assert!(stored.bytes() == expected && loaded.bytes() == expected);
    assert!(cache.load(Key([2; 16]), &shape(), &mut Caller).is_none());
    let contents = cache.contents().unwrap();
    assert_eq!(contents.n_files, 1);
    assert_eq!(contents.size_bytes, (4096 + expected.len()) as u64);
    assert_eq!(names(cache.dir()), [format!("{}.tiles", KEY.hex())]);
    // Deleted while in use.
    fs::remove_dir_all(cache.dir()).unwrap();
    assert!(stored.bytes() == expected);
}

#[test]
fn a_damaged_file_is_deleted_and_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    let path = cache.path(KEY);
    let size = 4096 + shape().size_bytes();
    for at in [0, 30, 4096, size / 2, size - 1] {
        drop(cache.store(KEY, &shape(), &fill, &mut Caller).unwrap());
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(cache.load(KEY, &shape(), &mut Caller).is_none(), "{at}");
        assert!(!path.exists(), "{at}");
    }
    drop(cache.store(KEY, &shape(), &fill, &mut Caller).unwrap());
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(size as u64 - 4096).unwrap();
    assert!(cache.load(KEY, &shape(), &mut Caller).is_none());
    assert!(cache.store(KEY, &shape(), &fill, &mut Caller).is_some());
    assert!(cache.load(KEY, &shape(), &mut Caller).is_some());
}

#[test]
fn what_killed_writers_leave_is_never_loaded_and_goes_away() {
    let dir = tempfile::tempdir().unwrap();
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    let (old, new) = (
        dir.path().join(format!("{}.tmp.1.0", KEY.hex())),
        dir.path().join(format!("{}.tmp.2.0", KEY.hex())),
    );
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for path in [&old, &new] {
        fs::write(path, b"half a file").unwrap();
    }
    let file = File::options().append(true).open(&old).unwrap();
    file.set_modified(hour_ago).unwrap();
    assert!(cache.load(KEY, &shape(), &mut Caller).is_none());
    assert!(cache.store(KEY, &shape(), &fill, &mut Caller).is_some());
    assert!(!old.exists() && new.exists());
    assert_eq!(cache.contents().unwrap().n_files, 1);
}

#[test]
fn the_file_used_longest_ago_makes_room_and_those_of_this_run_stay() {
    let dir = tempfile::tempdir().unwrap();
    let size = (4096 + shape().size_bytes()) as u64;
    let keys: Vec<Key> = (0..4).map(|i| Key([i; 16])).collect();
    let earlier = RepackCache::new(dir.path().to_owned(), 10 * size);
    for (hours, key) in (1..).zip(&keys[..3]) {
        drop(earlier.store(*key, &shape(), &fill, &mut Caller).unwrap());
        let file = File::options().append(true).open(earlier.path(*key));
        let used = SystemTime::now() - Duration::from_secs(3600 * hours);
        file.unwrap().set_modified(used).unwrap();
    }
    let cache = RepackCache::new(dir.path().to_owned(), 3 * size);
    let has = |i: usize| cache.path(keys[i]).exists();
    // A load is a use.
    assert!(cache.load(keys[2], &shape(), &mut Caller).is_some());
    assert!(cache.store(keys[3], &shape(), &fill, &mut Caller).is_some());
    assert!(has(0) && !has(1) && has(2) && has(3));
    // Two of this run are left with room for one more.
    let more = Key([9; 16]);
    assert!(cache.store(more, &shape(), &fill, &mut Caller).is_some());
    assert!(!has(0) && has(2) && has(3));
    let most = Key([10; 16]);
    assert!(cache.store(most, &shape(), &fill, &mut Caller).is_none());
    assert!(has(2) && has(3));
}

#[test]
fn a_directory_that_cannot_be_written_is_tried_once() {
    let dir = tempfile::tempdir().unwrap();
    // A file in its place, which stops root as well.
    let path = dir.path().join("file");
    fs::write(&path, b"").unwrap();
    let cache = RepackCache::new(path.clone(), 1 << 30);
    assert!(cache.load(KEY, &shape(), &mut Caller).is_none());
    assert!(cache.store(KEY, &shape(), &fill, &mut Caller).is_none());
    fs::remove_file(&path).unwrap();
    assert!(cache.store(KEY, &shape(), &fill, &mut Caller).is_none());
    assert!(!path.exists());
}

#[test]
fn files_in_a_read_only_directory_are_still_used() {
    let dir = tempfile::tempdir().unwrap();
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    drop(cache.store(KEY, &shape(), &fill, &mut Caller).unwrap());
    let mode = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode));
    mode(0o500).unwrap();
    assert!(cache.load(KEY, &shape(), &mut Caller).is_some());
    mode(0o700).unwrap();
}

#[test]
fn files_that_others_may_write_to_are_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    cache.store(KEY, &shape(), &fill, &mut Caller).unwrap();
    let path = dir.path().join(names(dir.path())[0].as_str());
    for (mode, is_used) in [(0o664, false), (0o602, false), (0o644, true), (0o600, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let loaded = cache.load(KEY, &shape(), &mut Caller);
        assert_eq!(loaded.is_some(), is_used, "{mode:o}");
    }
}

#[test]
fn a_panic_while_packing_leaves_nothing() {
    struct Panics;
    impl Parallel for Panics {
        fn for_each_item(
            &mut self,
            _n_items: usize,
            body: &(dyn Fn(usize) + Sync),
        ) -> Result<(), Panicked> {
            body(0);
            Err(Panicked)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = RepackCache::new(dir.path().to_owned(), 1 << 30);
    assert!(cache.store(KEY, &shape(), &fill, &mut Panics).is_none());
    assert_eq!(names(dir.path()), Vec::<String>::new());
}
