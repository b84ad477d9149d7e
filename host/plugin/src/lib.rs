//! Policies as sandboxed WebAssembly components.
