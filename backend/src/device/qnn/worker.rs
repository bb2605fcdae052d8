//! A thread that all calls of the library are made on, with a time limit.
//!
//! A call that hangs cannot be ended. Its caller stops waiting, the thread is left behind with all that it owns, and the
//! library is never called again.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::lock;

/// Why the thread does not answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Gone {
    /// A call took longer than the limit.
    #[error("a call of the library did not return within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// A call panicked.
    #[error("the thread of the library panicked")]
    Panicked,
    /// The system gave no thread.
    #[error("no thread for the library")]
    NoThread,
}

/// Counts calls that have returned: who makes several in one job keeps its caller waiting as long as they do.
#[derive(Debug, Default)]
pub(super) struct Beat(AtomicU64);

impl Beat {
    /// A call has returned.
    pub(super) fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Job<S> = Box<dyn FnOnce(&mut S, &Beat) + Send>;

/// Owning: the thread, and what lives on it.
#[derive(Debug)]
pub(super) struct Worker<S> {
    jobs: Mutex<Option<Sender<Job<S>>>>,
    /// Says when the thread has ended.
    ended: Mutex<Receiver<()>>,
    beat: Arc<Beat>,
    limit: Duration,
    gone: Arc<OnceLock<Gone>>,
}

impl<S: 'static> Worker<S> {
    /// Starts the thread with what `init` makes on it.
    pub(super) fn start<T: Send + 'static, E: Send + 'static>(
        limit: Duration,
        init: impl FnOnce(&Beat) -> Result<(S, T), E> + Send + 'static,
    ) -> Result<Result<(Self, T), E>, Gone> {
        Self::start_with(limit, Arc::new(OnceLock::new()), init)
    }

    /// Starts another thread, for calls that may be made beside those of this one: when one of them is gone, both are.
    pub(super) fn beside<O: Send + 'static>(&self, other: O) -> Result<Worker<O>, Gone> {
        let init = move |_: &Beat| Ok::<_, std::convert::Infallible>((other, ()));
        let started = Worker::start_with(self.limit, Arc::clone(&self.gone), init)?;
        let Ok((worker, ())) = started;
        Ok(worker)
    }

    fn start_with<T: Send + 'static, E: Send + 'static>(
        limit: Duration,
        gone: Arc<OnceLock<Gone>>,
        init: impl FnOnce(&Beat) -> Result<(S, T), E> + Send + 'static,
    ) -> Result<Result<(Self, T), E>, Gone> {
        let (jobs, queue) = mpsc::channel::<Job<S>>();
        let (reply, answer) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let beat = Arc::new(Beat::default());
        let beat_there = Arc::clone(&beat);
        let gone_there = Arc::clone(&gone);
        let body = move || {
            match init(&beat_there) {
                Ok((mut state, first)) => {
                    let _gone = reply.send(Ok(first));
                    drop(reply);
                    for job in queue {
                        job(&mut state, &beat_there);
                        // Who waits behind this job waits for his own from here on.
                        beat_there.tick();
                        if gone_there.get().is_some() {
                            break;
                        }
                    }
                    if gone_there.get().is_some() {
                        // Nobody waits, and the process may be ending: the library is left as it is.
                        let _left_behind = ManuallyDrop::new(state);
                    }
                }
                Err(error) => {
                    let _gone = reply.send(Err(error));
                }
            }
            let _gone = end.send(());
        };
        std::thread::Builder::new()
            .name("llada-npu-qnn".to_owned())
            // A panic ends the thread, which closes its channels.
            .spawn(move || drop(catch_unwind(AssertUnwindSafe(body))))
            .map_err(|_refused| Gone::NoThread)?;
        let first = wait(&answer, &beat, limit).inspect_err(|&why| {
            gone.get_or_init(|| why);
        })?;
        Ok(first.map(|first| {
            let worker = Self {
                jobs: Mutex::new(Some(jobs)),
                ended: Mutex::new(ended),
                beat,
                limit,
                gone,
            };
            (worker, first)
        }))
    }

    /// Runs `body` on the thread and waits for its result.
    pub(super) fn call<R: Send + 'static>(
        &self,
        body: impl FnOnce(&mut S, &Beat) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        if let Some(&gone) = self.gone.get() {
            return Err(gone);
        }
        let (reply, answer) = mpsc::channel();
        let job: Job<S> = Box::new(move |state, beat| {
            let _gone = reply.send(body(state, beat));
        });
        let sent = {
            let jobs = lock(&self.jobs);
            jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
        };
        let result = if sent {
            wait(&answer, &self.beat, self.limit)
        } else {
            Err(Gone::Panicked)
        };
        result.map_err(|gone| *self.gone.get_or_init(|| gone))
    }

    /// Returns why the thread does not answer any more.
    pub(super) fn gone(&self) -> Option<Gone> {
        self.gone.get().copied()
    }

    /// Returns where that is written, for who asks when the worker is dropped.
    pub(super) fn gone_cell(&self) -> Arc<OnceLock<Gone>> {
        Arc::clone(&self.gone)
    }
}

impl<S> Drop for Worker<S> {
    /// Waits until what lives on the thread is gone, but not for one that hangs.
    fn drop(&mut self) {
        drop(lock(&self.jobs).take());
        if self.gone.get().is_none() {
            let ended = lock(&self.ended);
            if ended.recv_timeout(self.limit) == Err(RecvTimeoutError::Timeout) {
                self.gone.get_or_init(|| Gone::TimedOut(self.limit));
            }
        }
    }
}

/// Waits for an answer as long as calls return within the limit.
fn wait<R>(answer: &Receiver<R>, beat: &Beat, limit: Duration) -> Result<R, Gone> {
    loop {
        let before = beat.0.load(Ordering::Relaxed);
        match answer.recv_timeout(limit) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(Gone::Panicked),
            Err(RecvTimeoutError::Timeout) if beat.0.load(Ordering::Relaxed) != before => {}
            Err(RecvTimeoutError::Timeout) => return Err(Gone::TimedOut(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(400);

    fn worker(limit: Duration) -> Worker<u32> {
        let started = Worker::start(limit, |_| Ok::<_, ()>((7, "first")));
        let (worker, first) = started.unwrap().unwrap();
        assert_eq!(first, "first");
        worker
    }

    #[test]
    fn calls_run_in_order_on_one_state() {
        let worker = worker(Duration::from_secs(60));
        assert_eq!(worker.call(|state, _| std::mem::replace(state, 8)), Ok(7));
        assert_eq!(worker.call(|state, _| *state), Ok(8));
        let error = Worker::<u32>::start(SHORT, |_| Err::<(u32, ()), _>("no"));
        assert_eq!(error.unwrap().unwrap_err(), "no");
    }

    #[test]
    fn who_hangs_is_left_behind() {
        let worker = worker(SHORT);
        let hang = |_: &mut u32, _: &Beat| std::thread::sleep(Duration::from_secs(3600));
        assert_eq!(worker.call(hang), Err(Gone::TimedOut(SHORT)));
        // At once, now.
        assert_eq!(worker.call(|state, _| *state), Err(Gone::TimedOut(SHORT)));
        assert_eq!(worker.gone(), Some(Gone::TimedOut(SHORT)));
    }

    #[test]
    fn many_calls_may_take_longer_than_one() {
        let worker = worker(SHORT);
        let slow = |_: &mut u32, beat: &Beat| {
            for _ in 0..16 {
                std::thread::sleep(SHORT / 10);
                beat.tick();
            }
        };
        assert_eq!(worker.call(slow), Ok(()));
    }

    #[test]
    fn who_waits_behind_others_has_his_own_limit() {
        let worker = worker(SHORT);
        let slow = |_: &mut u32, _: &Beat| std::thread::sleep(SHORT / 2);
        std::thread::scope(|scope| {
            let calls: Vec<_> = (0..6).map(|_| scope.spawn(|| worker.call(slow))).collect();
            for call in calls {
                assert_eq!(call.join().unwrap(), Ok(()));
            }
        });
    }

    #[test]
    fn what_was_left_behind_does_not_go_on() {
        let (done, was_done) = mpsc::channel();
        let worker = worker(SHORT);
        let cell = worker.gone_cell();
        let late = |_: &mut u32, _: &Beat| std::thread::sleep(2 * SHORT);
        std::thread::scope(|scope| {
            scope.spawn(|| worker.call(late));
            std::thread::sleep(SHORT / 4);
            let queued = worker.call(move |_, _| done.send(()));
            assert!(queued.is_err());
        });
        drop(worker);
        assert_eq!(cell.get(), Some(&Gone::TimedOut(SHORT)));
        // The job is dropped, not run.
        let end = was_done.recv_timeout(Duration::from_secs(60));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn two_threads_work_side_by_side_and_are_gone_together() {
        let first = worker(SHORT);
        let second = first.beside(1_u32).unwrap();
        let (go, may_go) = mpsc::channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| first.call(move |state, _| (may_go.recv(), *state)));
            assert_eq!(
                second.call(move |state, _| (*state, go.send(()))),
                Ok((1, Ok(())))
            );
            assert_eq!(waits.join().unwrap(), Ok((Ok(()), 7)));
        });
        let hang = |_: &mut u32, _: &Beat| std::thread::sleep(Duration::from_secs(3600));
        assert_eq!(second.call(hang), Err(Gone::TimedOut(SHORT)));
        assert_eq!(first.call(|state, _| *state), Err(Gone::TimedOut(SHORT)));
    }

    #[test]
    fn a_panic_is_an_answer() {
        let worker = worker(Duration::from_secs(60));
        assert_eq!(
            worker.call(|_, _| panic!("on purpose")),
            Err::<(), _>(Gone::Panicked)
        );
        assert_eq!(worker.call(|state, _| *state), Err(Gone::Panicked));
    }
}
