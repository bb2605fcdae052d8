//! How many threads pay.

use std::collections::HashSet;

/// Number of physical cores that this process may use, at least 1: threads beyond that share execution units and
/// slow a matrix product down.
pub fn n_physical_cores() -> u32 {
    let allowed = std::thread::available_parallelism()
        .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    match sibling_groups() {
        0 => allowed,
        n_cores => n_cores.min(allowed),
    }
}

/// Number of different sets of hardware threads, by Linux's description of the machine; 0 where there is none.
fn sibling_groups() -> u32 {
    let Ok(cpus) = std::fs::read_dir("/sys/devices/system/cpu") else {
        return 0;
    };
    let siblings = |name: &str| {
        let number = name.strip_prefix("cpu")?;
        number.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
        std::fs::read_to_string(format!(
            "/sys/devices/system/cpu/{name}/topology/thread_siblings_list"
        ))
        .ok()
    };
    let groups: HashSet<String> = cpus
        .flatten()
        .filter_map(|cpu| siblings(cpu.file_name().to_str()?))
        .collect();
    u32::try_from(groups.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_core_and_not_more_than_the_process_may_use() {
        let allowed = std::thread::available_parallelism().unwrap().get();
        assert!((1..=allowed).contains(&(n_physical_cores() as usize)));
    }
}
