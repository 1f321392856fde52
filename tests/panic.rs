//! A panic inside the library becomes a status, also one of a worker thread, and the next call works.
//! Needs the feature `test-hooks`: a tensor of a certain name makes the thread that hashes it panic.

mod common;

use common::{Tensor, digests, last_error};
use weight_checker::status::Status;

#[test]
fn a_panic_in_a_worker_thread_becomes_a_status() {
    let big = vec![1u8; 1 << 20];
    let tensors: Vec<Tensor> = (0..8).map(|index| Tensor::bytes(&format!("t{index}"), &big)).collect();
    let mut broken: Vec<Tensor> = (0..8).map(|index| Tensor::bytes(&format!("u{index}"), &big)).collect();
    broken.push(Tensor::bytes("test-hook: panic", &big));
    for threads in [1, 2, 4] {
        assert_eq!(digests(&broken, threads).unwrap_err(), Status::Panic);
        assert!(last_error().contains("the test asked for a panic"), "{}", last_error());
        assert_eq!(digests(&tensors, threads).unwrap().len(), tensors.len());
        assert_eq!(last_error(), "");
    }
}
