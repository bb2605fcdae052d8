//! Which names are most like one that does not exist.

/// Returns the `n` names that are most like `wanted`, the nearest first: those that contain it, then those that fewest edits of a
/// character make of it.
pub(super) fn nearest(
    wanted: &str,
    names: impl Iterator<Item = &'static str>,
    n: usize,
) -> Vec<&'static str> {
    let mut ranked: Vec<_> = names
        .map(|name| {
            (
                !name.contains(wanted),
                strsim::levenshtein(wanted, name),
                name,
            )
        })
        .collect();
    ranked.sort_unstable();
    ranked.dedup();
    ranked.into_iter().take(n).map(|(.., name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_contain_it_come_first() {
        let names = [
            "x86_64-rope-avx2",
            "generic-f16",
            "generic-f32",
            "generic-q4_0",
            "generic-f16",
        ];
        let of = |wanted| nearest(wanted, names.into_iter(), 2);
        assert_eq!(of("genericf16"), ["generic-f16", "generic-f32"]);
        assert_eq!(of("rope-avx"), ["x86_64-rope-avx2", "generic-f16"]);
        assert_eq!(of("q4_0")[0], "generic-q4_0");
    }
}
