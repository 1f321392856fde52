//! A Rust host that has its own logger keeps it: asking for a callback is refused by a status.

use std::ptr;

use log::{LevelFilter, Log, Metadata, Record};
use weight_checker::ffi::wc_set_log_callback;
use weight_checker::status::Status;

struct Own;

impl Log for Own {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn log(&self, _: &Record<'_>) {}
    fn flush(&self) {}
}

#[test]
fn another_logger_stays() {
    log::set_logger(&Own).unwrap();
    log::set_max_level(LevelFilter::Warn);
    for _ in 0..2 {
        assert_eq!(wc_set_log_callback(None, ptr::null_mut()), Status::System);
    }
    assert_eq!(log::max_level(), LevelFilter::Warn);
}
