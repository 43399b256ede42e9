//! `refrain new`: creates a crate with a server, its tests, a Containerfile and a CI workflow.
//!
//! The files are those of `template`. Its sources are compiled and tested as the example `template` of this crate.

use crate::AppError;
use clap::Args;
use refrain_app::with_hint;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

const RUST: &str = env!("CARGO_PKG_RUST_VERSION");
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The maximum length of a crate name.
const NAME_MAX: usize = 64;

/// The crates of Refrain that the template depends on.
const CRATES: [&str; 3] = ["refrain", "refrain-app", "refrain-testkit"];

/// The files of a new crate.
///
/// | placeholder | value |
/// | --- | --- |
/// | `{{name}}` | the name of the crate |
/// | `{{rust}}` | the minimum Rust version |
/// | `{{refrain}}`, `{{refrain-app}}`, `{{refrain-testkit}}` | the dependency: a path in the clone, or the version |
/// | `{{build}}` | the command that builds the image |
/// | `{{copy}}` | the lines of the Containerfile that copy the clone, if there is one |
const FILES: [(&str, &str); 8] = [
    ("Cargo.toml", include_str!("../template/manifest.toml")),
    ("src/main.rs", include_str!("../template/src/main.rs")),
    ("src/tests.rs", include_str!("../template/src/tests.rs")),
    ("Containerfile", include_str!("../template/Containerfile")),
    (".dockerignore", include_str!("../template/dockerignore")),
    (
        ".github/workflows/ci.yml",
        include_str!("../template/ci.yml"),
    ),
    ("README.md", include_str!("../template/README.md")),
    (".gitignore", include_str!("../template/gitignore")),
];

/// Names that cargo rejects or warns about, and the new crate's dependencies.
const RESERVED: &str = "\
    abstract alloc as async await become box break build const continue core crate deps do dyn else enum \
    examples extern false final fn for gen if impl in incremental let loop macro match mod move mut override \
    priv proc-macro pub ref return schemars self serde static std struct super test tokio trait true try \
    type typeof unsafe unsized use virtual where while yield";

#[derive(Args)]
pub(crate) struct NewOptions {
    /// The name of the crate, and of the directory to create.
    name: String,
    /// A clone of Refrain, for dependencies by path [default: the clone that this program was built from; if it is gone, the
    /// published version].
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum NewError {
    #[error("invalid crate name {0:?}: {1}")]
    Name(String, InvalidName),
    #[error("{} already exists and is not an empty directory", .0.display())]
    Exists(PathBuf),
    #[error("{} is not a clone of Refrain: it has no crates/refrain/Cargo.toml", .0.display())]
    NotAClone(PathBuf),
    #[error("the path {} is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    #[error("cannot write {}: {}", .0.display(), .1)]
    Write(PathBuf, #[source] io::Error),
}

#[derive(Debug, thiserror::Error)]
enum InvalidName {
    #[error("it is empty")]
    Empty,
    #[error("it must start with a lower-case letter")]
    Start,
    #[error("it contains a character that is not allowed")]
    Character,
    #[error("it is longer than {NAME_MAX} characters")]
    TooLong,
    #[error("`refrain` and names that start with `refrain-` are reserved")]
    Refrain,
    #[error("it is reserved")]
    Reserved,
}

impl NewError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Name(_, InvalidName::TooLong) | Self::Write(..) => return None,
            Self::Name(_, InvalidName::Refrain) => "choose another name, as in `my-server`",
            Self::Name(name, InvalidName::Reserved) => {
                return Some(format!("choose another name, as in `my-{name}`"));
            }
            Self::Name(..) => {
                "use lower-case letters, digits, - and _, as in `refrain new my-server`"
            }
            Self::Exists(_) => "choose another name, or remove it",
            Self::NotAClone(_) => "pass the root directory of the clone",
            Self::NotUtf8(_) => "use a clone in another directory",
        };
        Some(hint.to_owned())
    }
}

pub(crate) fn run(options: &NewOptions) -> Result<ExitCode, AppError> {
    create(options).map_err(|error| match error.hint() {
        Some(hint) => with_hint(error, hint),
        None => error.into(),
    })?;
    let name = &options.name;
    anstream::println!(
        "Created {name}. Next:\n\n  cd {name}\n  cargo test\n  refrain dev --port 8080    # runs the server, and shows a menu of its tools"
    );
    Ok(ExitCode::SUCCESS)
}

fn create(options: &NewOptions) -> Result<(), NewError> {
    let name = options.name.as_str();
    check_name(name)?;
    let clone = match &options.path {
        Some(path) => Some(given_clone(path)?),
        None => own_clone(),
    };
    let directory = Path::new(name);
    let is_used = fs::read_dir(directory).map(|mut entries| entries.next().is_some());
    if is_used.unwrap_or_else(|_| directory.exists()) {
        return Err(NewError::Exists(directory.to_owned()));
    }
    let write = |file: &str, text: &str| {
        let file = directory.join(file);
        let folder = file.parent().unwrap_or(directory);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, text));
        written.map_err(|error| NewError::Write(file, error))
    };
    for (file, template) in FILES {
        let mut text = fill(template, name, clone.as_deref());
        // A crate below another one would belong to its workspace.
        if file == "Cargo.toml" && has_manifest_above(directory) {
            text.push_str("\n[workspace]\n");
        }
        write(file, &text)?;
    }
    // Locks the versions that Refrain is tested with. Cargo removes unused entries.
    if let Some(lock) = clone.and_then(|clone| fs::read_to_string(clone + "/Cargo.lock").ok()) {
        write("Cargo.lock", &lock)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), NewError> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let why = match name {
        "" => InvalidName::Empty,
        _ if !name.starts_with(|c: char| c.is_ascii_lowercase()) => InvalidName::Start,
        _ if !name.chars().all(is_allowed) => InvalidName::Character,
        _ if name.len() > NAME_MAX => InvalidName::TooLong,
        _ if name == "refrain" || name.starts_with("refrain-") || name.starts_with("refrain_") => {
            InvalidName::Refrain
        }
        _ if RESERVED
            .split(' ')
            .any(|word| word == name.replace('_', "-")) =>
        {
            InvalidName::Reserved
        }
        _ => return Ok(()),
    };
    Err(NewError::Name(name.to_owned(), why))
}

/// The clone that this program was built from, if it is still there.
fn own_clone() -> Option<String> {
    given_clone(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))).ok()
}

fn given_clone(path: &Path) -> Result<String, NewError> {
    if !path.join("crates/refrain/Cargo.toml").is_file() {
        return Err(NewError::NotAClone(path.to_owned()));
    }
    let path = fs::canonicalize(path).map_err(|_| NewError::NotAClone(path.to_owned()))?;
    let text = path.into_os_string().into_string();
    text.map_err(|path| NewError::NotUtf8(path.into()))
}

fn has_manifest_above(directory: &Path) -> bool {
    std::path::absolute(directory).is_ok_and(|directory| {
        let above = directory.ancestors().skip(1);
        above
            .map(|folder| folder.join("Cargo.toml"))
            .any(|file| file.is_file())
    })
}

fn fill(template: &str, name: &str, clone: Option<&str>) -> String {
    let mut text = template.replace("{{name}}", name).replace("{{rust}}", RUST);
    for package in CRATES {
        let dependency = match clone {
            Some(clone) => format!("{{ path = {:?} }}", format!("{clone}/crates/{package}")),
            None => format!("{VERSION:?}"),
        };
        text = text.replace(&format!("{{{{{package}}}}}"), &dependency);
    }
    // An image gets the clone from a second build context, and copies it to the path that it has on this machine.
    let (build, copy) = match clone {
        Some(clone) => (
            format!("docker build -f Containerfile -t {name} --build-context refrain={clone} ."),
            format!(
                "COPY --from=refrain Cargo.toml Cargo.lock {clone}/\n\
                 COPY --from=refrain crates {clone}/crates\n\
                 COPY --from=refrain examples {clone}/examples\n"
            ),
        ),
        None => (
            format!("docker build -f Containerfile -t {name} ."),
            String::new(),
        ),
    };
    text.replace("{{build}}", &build).replace("{{copy}}", &copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cargo_rejects_or_warns_about_are_rejected() {
        for name in [
            "",
            "Server",
            "9lives",
            "-x",
            "a b",
            "a/b",
            "../x",
            "é",
            "fn",
            "test",
            "serde",
            "refrain",
            "refrain-app",
            "refrain_app",
            "proc_macro",
        ] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in ["weather", "my-server", "my_server2", "x", "refrains"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn every_placeholder_is_filled() {
        for clone in [None, Some("/clone")] {
            for (file, template) in FILES {
                let text = fill(template, "weather", clone);
                assert!(!text.contains("{{"), "{file}: {text}");
            }
        }
        let manifest = fill(FILES[0].1, "weather", None);
        assert!(manifest.contains(&format!("refrain-app = \"{VERSION}\"")));
    }
}
