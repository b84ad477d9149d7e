//! Checks that the built-in policies are there: they are components, built apart (`./x build`, or `guests/build.sh`).

use std::path::Path;

fn main() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/policies");
    for name in ["lease-policy", "pod-manifest", "warm-replay"] {
        let file = folder.join(format!("{name}.wasm"));
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            println!(
                "cargo::error=the built-in policy {} isn't built: run ./x build (or guests/build.sh)",
                file.display()
            );
        }
    }
}
