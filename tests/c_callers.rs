//! Compiles C and C++ programs with the committed header, links them with the shared library, and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where cargo has put `libweight_checker.so` for this test.
fn library_folder() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libweight_checker.so").exists(), "cargo did not build the shared library into {folder:?}");
    folder
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
}

fn compile_and_run(compiler: &str, standard: &str, source: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.replace('.', "_"));
    run(Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"])
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/c").join(source))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lweight_checker"));
    run(&mut Command::new(&program));
}

#[test]
fn c11() {
    compile_and_run("cc", "-std=c11", "use_from_c.c");
}

#[test]
fn cpp17() {
    compile_and_run("c++", "-std=c++17", "use_from_cpp.cpp");
}
