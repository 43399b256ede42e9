//! The macros: the forms they derive, the builders they give out, and how they report mistakes.

#[path = "macros/forms.rs"]
mod forms;
#[path = "macros/handlers.rs"]
mod handlers;

/// What rustc prints for each mistake. To write the files anew: `TRYBUILD=overwrite cargo test -p refrain --test macros`.
#[test]
fn invalid_uses_are_compile_errors() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
