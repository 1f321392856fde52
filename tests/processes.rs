//! Correct from several threads at once, in a forked child, and confined to one core.

mod common;

use std::mem::MaybeUninit;
use std::thread;

use common::{Tensor, digests, sha256};
use weight_checker::parallel::allowed_cores;

fn memory() -> Vec<Vec<u8>> {
    (0..6).map(|index| vec![index; (1 << 20) + usize::from(index)]).collect()
}

fn check(memory: &[Vec<u8>]) {
    let tensors: Vec<Tensor> =
        memory.iter().enumerate().map(|(index, bytes)| Tensor::bytes(&index.to_string(), bytes)).collect();
    let expected: Vec<_> = memory.iter().map(|bytes| sha256(bytes)).collect();
    assert_eq!(digests(&tensors, 4).unwrap(), expected);
}

#[test]
fn from_several_threads() {
    let memory = memory();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5).for_each(|_| check(&memory)));
        }
    });
}

/// Forks and gives the child's exit status: 0 when `work` did not panic.
fn in_child(work: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `work` and leaves by `_exit`, so it never returns into the test harness.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        child => {
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            let mut status = -1;
            // SAFETY: waits for our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn in_forked_children() {
    let memory = memory();
    assert_eq!(in_child(|| check(&memory)), 0, "a child of a parent that never called the library");
    check(&memory);
    assert_eq!(in_child(|| check(&memory)), 0, "a child of a parent that has called it");
    assert_ne!(in_child(|| panic!("on purpose")), 0, "the helper must see a failing child");
}

#[test]
fn confined_to_one_core() {
    let memory = memory();
    let confined = || {
        let mut cores = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: all zero bits are an empty set; the kernel reads a set of the size given.
        unsafe {
            libc::CPU_SET(0, cores.assume_init_mut());
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), cores.as_ptr()), 0);
        }
        assert_eq!(allowed_cores(), 1);
        check(&memory);
    };
    assert_eq!(in_child(confined), 0);
}
