//! The committed header is what cbindgen makes of the source. `UPDATE_HEADER=1 cargo test --test header` rewrites it.

use std::path::Path;

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is readable");
    // The one source of the version is Cargo.toml.
    let version = env!("CARGO_PKG_VERSION");
    config.after_includes = Some(format!(
        "\n/* The version of the library that this header belongs to. */\n#define WC_VERSION \"{version}\""
    ));
    let mut header = Vec::new();
    cbindgen::generate_with_config(root, config).expect("the source parses").write(&mut header);
    String::from_utf8(header).expect("cbindgen writes UTF-8")
}

#[test]
fn the_committed_header_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/weight_checker.h");
    let generated = generated();
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("the header is writable");
    }
    let committed = std::fs::read_to_string(&path).expect("include/weight_checker.h exists");
    assert!(committed == generated, "the header is stale: run UPDATE_HEADER=1 cargo test --test header");
}

#[test]
fn every_name_has_the_prefix() {
    let header = generated();
    let names = header.lines().filter_map(|line| {
        let rest = ["#define ", "typedef struct ", "typedef int32_t ", "enum ", "struct "]
            .iter()
            .find_map(|word| line.strip_prefix(word));
        rest.map(|rest| rest.split([' ', ';', '(']).next().unwrap_or_default())
    });
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 10, "{names:?}");
    let foreign: Vec<_> = names
        .iter()
        .filter(|name| !name.starts_with("Wc") && !name.starts_with("WC_") && **name != "WEIGHT_CHECKER_H")
        .collect();
    assert!(foreign.is_empty(), "names that may clash with a caller's own: {foreign:?}");
}
