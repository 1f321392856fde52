//! Forwards the crate's log records to the host's logger.

use std::ffi::{CString, c_void};
use std::sync::{OnceLock, RwLock};

use log::{LevelFilter, Log, Metadata, Record};

use super::types::WcLogCallback;
use crate::status::{Error, Result, Status};

static FORWARDER: Forwarder = Forwarder { sink: RwLock::new(None) };
/// Whether the crate `log` has taken the forwarder as its logger; decided by the first call.
static INSTALLED: OnceLock<bool> = OnceLock::new();

struct Forwarder {
    sink: RwLock<Option<Sink>>,
}

struct Sink {
    function: unsafe extern "C" fn(i32, *const std::ffi::c_char, *const std::ffi::c_char, *mut c_void),
    data: *mut c_void,
}

// SAFETY: the header says that the callback is called from any thread with `data`.
unsafe impl Send for Sink {}
// SAFETY: and by several at once.
unsafe impl Sync for Sink {}

/// Makes `callback` the receiver of log records; NULL ends forwarding. When this returns, no call of the callback
/// before is running.
pub fn set_callback(callback: WcLogCallback, data: *mut c_void) -> Result<()> {
    if !*INSTALLED.get_or_init(|| log::set_logger(&FORWARDER).is_ok()) {
        return Err(Error::new(Status::System, "the process has installed another logger for the `log` crate"));
    }
    let sink = callback.map(|function| Sink { function, data });
    log::set_max_level(if sink.is_some() { LevelFilter::Trace } else { LevelFilter::Off });
    *FORWARDER.sink.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = sink;
    Ok(())
}

impl Log for Forwarder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with(env!("CARGO_CRATE_NAME"))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = |text: String| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        let (target, message) = (text(record.target().to_owned()), text(record.args().to_string()));
        let sink = self.sink.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(Sink { function, data }) = &*sink {
            // SAFETY: the host gave this function with this data to be called from any thread; the strings outlive the call.
            unsafe { function(record.level() as i32, target.as_ptr(), message.as_ptr(), *data) };
        }
    }

    fn flush(&self) {}
}
