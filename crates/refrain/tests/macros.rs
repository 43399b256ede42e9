//! The macros: derived forms, returned builders, compile errors.

#[path = "macros/forms.rs"]
mod forms;
#[path = "macros/handlers.rs"]
mod handlers;

/// Compares the output of rustc. To update the files: `TRYBUILD=overwrite cargo test -p refrain --test macros`.
#[test]
fn invalid_uses_are_compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
