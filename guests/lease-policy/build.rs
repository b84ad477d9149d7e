//! A smaller stack: what a decision touches is reset for the next one, and what lies between is looked through for it.

fn main() {
    if std::env::var_os("CARGO_CFG_TARGET_ARCH").is_some_and(|arch| arch == "wasm32") {
        println!("cargo::rustc-link-arg-cdylib=-zstack-size=131072");
    }
}
