//! On which processors a thread may run.

use std::mem::MaybeUninit;

/// A set of processors.
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

impl std::fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuSet")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: both are complete sets.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

/// A thread of this process, by the system's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(libc::pid_t);

impl ThreadId {
    /// Returns the number of the calling thread.
    #[must_use]
    pub fn of_caller() -> Self {
        // SAFETY: a question without arguments.
        Self(unsafe { libc::gettid() })
    }
}

impl CpuSet {
    /// Returns the processors that the calling thread may run on; `None` where the system does not tell.
    #[must_use]
    pub fn of_caller() -> Option<Self> {
        Self::of_thread(ThreadId(0))
    }

    /// Returns the processors that threads of this process are bound to which may run on one alone, leaving out those whose
    /// name starts with `own`; `None` where there is no such thread, or the system does not tell.
    #[must_use]
    pub fn of_bound_threads(own: &str) -> Option<Self> {
        let is_foreign = |path: &std::path::Path| {
            let name = std::fs::read_to_string(path.join("comm"));
            name.is_ok_and(|name| !name.starts_with(own))
        };
        let tasks = std::fs::read_dir("/proc/self/task").ok()?;
        let paths = tasks.filter_map(|task| Some(task.ok()?.path()));
        let foreign = paths.filter(|path| is_foreign(path));
        let ids = foreign.filter_map(|path| path.file_name()?.to_str()?.parse().ok());
        let sets = ids.filter_map(|id| Self::of_thread(ThreadId(id)));
        sets.filter(|set| set.len() == 1)
            .reduce(|all, set| all.or(&set))
    }

    fn of_thread(thread: ThreadId) -> Option<Self> {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: the set is of this size and writable; thread 0 is the caller, one that has ended an error.
        let status = unsafe {
            libc::sched_getaffinity(thread.0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr())
        };
        // SAFETY: all bytes are zeros or were written by the call.
        (status == 0).then(|| Self(unsafe { set.assume_init() }))
    }

    /// Returns the number of processors.
    #[must_use]
    pub fn len(&self) -> usize {
        // SAFETY: a complete set.
        let n = unsafe { libc::CPU_COUNT(&self.0) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Returns the processors of both.
    #[must_use]
    fn or(mut self, other: &Self) -> Self {
        for cpu in 0..8 * size_of::<libc::cpu_set_t>() {
            // SAFETY: a complete set, and the number of a processor that it has room for.
            let has = unsafe { libc::CPU_ISSET(cpu, &other.0) };
            if has {
                // SAFETY: as above.
                unsafe { libc::CPU_SET(cpu, &mut self.0) };
            }
        }
        self
    }

    /// Returns the set of the `n`-th one alone, from 0 on; `None` where there are not so many.
    #[must_use]
    pub fn nth(&self, n: usize) -> Option<Self> {
        let has = |cpu: &usize| {
            // SAFETY: a complete set, and the number of a processor that it has room for.
            unsafe { libc::CPU_ISSET(*cpu, &self.0) }
        };
        let cpu = (0..8 * size_of::<libc::cpu_set_t>()).filter(has).nth(n)?;
        // SAFETY: a set of zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        Some(Self(set))
    }

    /// Tells whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Restricts a thread to these processors. False where the system refuses.
    pub fn apply_to(&self, thread: ThreadId) -> bool {
        // SAFETY: the set is of this size and readable; a thread that has ended is an error, not a danger.
        let status = unsafe {
            libc::sched_setaffinity(thread.0, size_of::<libc::cpu_set_t>(), &raw const self.0)
        };
        status == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_run_somewhere_and_can_be_told_to_stay_there() {
        let set = CpuSet::of_caller().unwrap();
        assert!(!set.is_empty());
        assert!(set.apply_to(ThreadId::of_caller()));
        assert_eq!(CpuSet::of_caller(), Some(set));
    }

    #[test]
    fn processors_that_threads_are_bound_to_are_found_except_our_own() {
        let all = CpuSet::of_caller().unwrap();
        let one = all.nth(0).unwrap();
        let bound = std::thread::Builder::new().name("bound-elsewhere".to_owned());
        let bound = bound.spawn(move || {
            assert!(one.apply_to(ThreadId::of_caller()));
            let found = ["", "other", "bound"].map(CpuSet::of_bound_threads);
            [
                found[0].is_none(),
                found[1] == Some(one),
                found[2].is_none(),
            ]
        });
        // Every name starts with nothing; tests beside this one bind no thread to one processor.
        assert_eq!(bound.unwrap().join().unwrap(), [true, true, all.len() > 1]);
        assert_eq!(all.or(&one), all);
    }
}
