//! A panic inside the library becomes a status, also one of a worker thread, and the next call works.
//! Needs the feature `test-hooks`: a tensor of a certain name makes the thread that hashes it panic.

mod common;

use common::{Tensor, digests, last_error};
use weight_checker::status::Status;

#[test]
fn a_panic_in_a_worker_thread_becomes_a_status() {
    let memory: Vec<Vec<u8>> = (0..8).map(|index| vec![index; 1 << 20]).collect();
    let tensors = |broken: usize| -> Vec<Tensor> {
        let name = |index| if index == broken { "test-hook: panic".to_owned() } else { format!("t{index}") };
        memory.iter().enumerate().map(|(index, bytes)| Tensor::bytes(&name(index), bytes)).collect()
    };
    for threads in [1, 2, 4] {
        for broken in 0..memory.len() {
            assert_eq!(digests(&tensors(broken), threads).unwrap_err(), Status::Panic);
            assert!(last_error().contains("the test asked for a panic"), "{}", last_error());
        }
        assert_eq!(digests(&tensors(memory.len()), threads).unwrap().len(), memory.len());
        assert_eq!(last_error(), "");
    }
}
