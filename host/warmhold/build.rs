//! Checks that the built-in policies are there: they are components, built apart (`./x build`, or `guests/build.sh`).

use std::path::Path;

fn main() {
    // Asked for at run time: a target folder that two checkouts shared may hold this program as the other one built it.
    let Some(package) = std::env::var_os("CARGO_MANIFEST_DIR") else {
        println!("cargo::error=CARGO_MANIFEST_DIR isn't set: this program is run by cargo");
        return;
    };
    let folder = Path::new(&package).join("../../target/policies");
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
