//! The session of this process.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock, PoisonError, Weak};

use super::engine::LIBRARY;
use super::{Identity, Session, Settings, worker};
use crate::knobs::{Accel, KnobError};
use crate::memory::context_dir;
use crate::sync::lock;

/// The session of this process, while somebody uses it.
static SESSION: Mutex<Opened> = Mutex::new(Opened::Not);

/// It is not being opened any more.
static SETTLED: Condvar = Condvar::new();

enum Opened {
    Not,
    /// Somebody does.
    Now,
    Once {
        session: Weak<Session>,
        /// Whether the library stopped to answer, also when the session is dropped.
        gone: Arc<OnceLock<worker::Gone>>,
    },
    /// It failed, or does not answer any more, which is not tried again.
    Failed,
}

/// Owning: the right to open it. If its holder panics, others may try.
struct Opening;

impl Opening {
    fn end(self, opened: Opened) {
        *lock(&SESSION) = opened;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut opened = lock(&SESSION);
        if matches!(*opened, Opened::Now) {
            *opened = Opened::Not;
        }
        drop(opened);
        SETTLED.notify_all();
    }
}

enum Found {
    /// `None`: there is none, and will be none.
    Opened(Option<Arc<Session>>),
    Not(Opening),
}

/// Looks for the session, and waits while somebody opens it.
fn find() -> Found {
    let mut opened = lock(&SESSION);
    loop {
        match &*opened {
            Opened::Now => {
                let waited = SETTLED.wait(opened);
                opened = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Opened::Failed => return Found::Opened(None),
            // Its thread may hold what another one would wait for.
            Opened::Once { gone, .. } if gone.get().is_some() => {
                *opened = Opened::Failed;
                return Found::Opened(None);
            }
            Opened::Once { session, .. } => {
                if let Some(session) = session.upgrade() {
                    return Found::Opened(Some(session));
                }
            }
            Opened::Not => {}
        }
        *opened = Opened::Now;
        return Found::Not(Opening);
    }
}

/// What is said about the chip.
const EMULATED: &str = if cfg!(target_arch = "x86_64") {
    ", emulated"
} else {
    ""
};

/// Returns the session that the settings ask for; `None` where everything is computed by the host. Instances share it: the first
/// opens it, others wait meanwhile.
///
/// # Errors
/// When a setting is not understood.
pub fn session() -> Result<Option<Arc<Session>>, KnobError> {
    let settings = Settings::read()?;
    let is_wanted = match settings.accel {
        Accel::Host => false,
        // What runs there is an emulation.
        Accel::Auto => !cfg!(target_arch = "x86_64"),
        Accel::Qnn => true,
    };
    if !is_wanted {
        if settings.accel == Accel::Auto {
            tell_about_dir(settings.open.dir.as_deref());
        }
        return Ok(None);
    }
    let cache = context_dir()?;
    let opening = match find() {
        Found::Opened(session) => return Ok(session),
        Found::Not(opening) => opening,
    };
    // Who names a directory means it.
    let is_asked_for = settings.accel == Accel::Qnn || settings.open.dir.is_some();
    match Session::open(settings, cache) {
        Ok(session) => {
            let session = Arc::new(session);
            let Identity {
                path,
                build_id,
                soc,
                ..
            } = session.identity();
            let chip = soc.map_or("unknown chip".to_owned(), |soc| soc.to_string());
            log::info!("QNN {build_id} from {}: {chip}{EMULATED}", path.display());
            opening.end(Opened::Once {
                session: Arc::downgrade(&session),
                gone: session.gone(),
            });
            Ok(Some(session))
        }
        Err(error) => {
            opening.end(Opened::Failed);
            if is_asked_for {
                log::warn!("QNN cannot be used, the host computes everything: {error}");
            } else {
                log::debug!("no QNN: {error}");
            }
            Ok(None)
        }
    }
}

/// Says once that a directory which the user names holds no library, also where it would not be used.
fn tell_about_dir(dir: Option<&Path>) {
    static TOLD: Once = Once::new();
    let Some(dir) = dir else {
        return;
    };
    TOLD.call_once(|| match dir.join(LIBRARY).metadata() {
        Ok(_) => log::info!(
            "no QNN: the library is an emulation, which LLADA_NPU_ACCEL=auto does not take"
        ),
        Err(error) => log::warn!("LLADA_NPU_QNN_DIR={}: {LIBRARY}: {error}", dir.display()),
    });
}
