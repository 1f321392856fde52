//! Imports point down only, and unsafe code stays where it is allowed.

use std::fs;
use std::path::{Path, PathBuf};

/// The layer of a module of the crate; `lib.rs` describes them.
fn layer(module: &str) -> u32 {
    match module {
        "ffi" => 3,
        "ops" => 2,
        "checkpoint" | "cuda" | "hash" | "host" | "memory" | "parallel" | "plan" | "reader" => 1,
        "baseline" | "cast" | "digest" | "dtype" | "layout" | "mapped" | "named" | "progress" | "rank" | "report"
        | "status" | "view" => 0,
        other => panic!("module '{other}' has no layer: give it one here and in lib.rs"),
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The modules of the crate that a file's code names as `crate::module`.
fn imports(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = |line: &str| -> Vec<String> {
        let after = line.split("crate::").skip(1);
        after.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
    };
    code.flat_map(names).collect()
}

#[test]
fn imports_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for path in sources(&root).iter().filter(|path| !path.ends_with("lib.rs")) {
        let relative = path.strip_prefix(&root).unwrap();
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
        for import in imports(&fs::read_to_string(path).unwrap()) {
            assert!(layer(&import) <= layer(&module), "{relative:?} imports {import}, which is above it");
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} imports found: the test does not read the code any more");
}

#[test]
fn unsafe_code_has_its_places() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root) {
        let relative = path.strip_prefix(&root).unwrap();
        let hash = ["backend_tests.rs", "x86_avx2.rs", "x86_avx512.rs", "x86_shani.rs", "x86_wide.rs"];
        let allowed = relative.starts_with("ffi")
            || relative.starts_with("cuda")
            || ["view.rs", "mapped.rs", "host.rs", "memory.rs", "lib.rs", "cast/avx2.rs", "checkpoint/file.rs"]
                .map(Path::new)
                .contains(&relative)
            || hash.map(|file| Path::new("hash").join(file)).contains(&relative.to_owned());
        assert!(allowed || !fs::read_to_string(&path).unwrap().contains("unsafe"), "{relative:?} has unsafe code");
    }
}
