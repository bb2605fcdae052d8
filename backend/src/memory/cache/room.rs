//! Which files make room for a new one.

use std::time::SystemTime;

/// A file of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found<P> {
    /// Where it is.
    pub(super) path: P,
    /// Its length.
    pub(super) size_bytes: u64,
    /// When it was used last.
    pub(super) used: SystemTime,
}

/// Returns the files to delete, those used longest ago first, so that `needed_bytes` more fit `max_bytes`; `None` where
/// they do not fit beside the files used since `keep_since`.
pub(super) fn make_room<P: Clone>(
    files: &[Found<P>],
    needed_bytes: u64,
    max_bytes: u64,
    keep_since: SystemTime,
) -> Option<Vec<Found<P>>> {
    let mut total = files.iter().fold(needed_bytes, |sum, file| {
        sum.saturating_add(file.size_bytes)
    });
    let mut oldest_first: Vec<_> = files.iter().filter(|f| f.used < keep_since).collect();
    oldest_first.sort_by_key(|file| file.used);
    let mut victims = Vec::new();
    for file in oldest_first {
        if total <= max_bytes {
            break;
        }
        total -= file.size_bytes;
        victims.push(file.clone());
    }
    (total <= max_bytes).then_some(victims)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(path: u32, size_bytes: u64) -> Found<u32> {
        let used = SystemTime::UNIX_EPOCH + Duration::from_secs(path.into());
        Found {
            path,
            size_bytes,
            used,
        }
    }

    #[test]
    fn the_oldest_go_first_and_those_in_use_stay() {
        let files = [file(3, 30), file(1, 10), file(2, 20), file(9, 90)];
        let keep_since = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        // (needed, limit, deleted)
        let cases: [(u64, u64, Option<&[u32]>); 7] = [
            (0, 150, Some(&[])),
            (1, 150, Some(&[1])),
            (11, 150, Some(&[1, 2])),
            (60, 150, Some(&[1, 2, 3])),
            (61, 150, None),
            (0, 89, None),
            (u64::MAX, 150, None),
        ];
        for (needed, limit, expected) in cases {
            let victims = make_room(&files, needed, limit, keep_since)
                .map(|files| files.iter().map(|file| file.path).collect::<Vec<_>>());
            assert_eq!(victims.as_deref(), expected, "{needed} of {limit}");
        }
    }
}
