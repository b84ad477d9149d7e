//! The world of fact sources. Generated; what an author uses is in `warmhold-sdk`.
//!
//! A crate of its own because the generated export macros live at the root of their crate, and every world exports
//! `about`. What a component declares comes from the macro that it calls: to depend on several of these costs nothing.
#![allow(missing_docs, clippy::all, reason = "generated from the WIT package, where everything is documented")]

wit_bindgen::generate!({
    path: "../../../wit",
    world: "fact-source",
    with: { "warmhold:policy/types@0.1.0": warmhold_bindings_types::warmhold::policy::types },
    additional_derives: [Clone, PartialEq],
    pub_export_macro: true,
    export_macro_name: "export_component",
    default_bindings_module: "warmhold_bindings_facts",
});
