//! The types that every world shares. Generated; what an author uses is in `warmhold-sdk`.
#![allow(missing_docs, clippy::all, reason = "generated from the WIT package, where everything is documented")]

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "package warmhold:shared; world shared { import warmhold:policy/types@0.1.0; }",
    world: "warmhold:shared/shared",
    generate_all,
    generate_unused_types: true,
    additional_derives: [Clone, PartialEq],
});
