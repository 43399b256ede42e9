//! The Skills extension (SEP-2640): directories with instructions for agents, served as resources.
//!
//! | module | contents |
//! | --- | --- |
//! | `frontmatter` | the YAML at the start of `SKILL.md` |

mod frontmatter;

use crate::builder::BuildError;
use crate::catalog::{Cursor, PagedMap, Resource, encode_uri};
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
pub use frontmatter::FrontmatterError;
use refrain_core::Cx;
use refrain_wire::{
    Cache, Excerpt, ListResult, Reply, ResourceContents, RpcError, SkillFile, SkillInfo,
    SkillResources, SkillResult,
};
use serde_json::{Map, Value};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that every skill has.
const SKILL_FILE: &str = "SKILL.md";
/// The maximum number of files of a skill. The extension requires clients to support this many.
const MAX_FILES: usize = 512;
/// The maximum size of all files of a skill, required likewise.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// The number of `skills/list` in cursors. The lists of `Listing` have 0 to 3.
const LIST_NUMBER: usize = 4;

/// A skill: a directory of files, among them `SKILL.md` with instructions for an agent.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("refunds");
/// # std::fs::create_dir(&path)?;
/// # std::fs::write(path.join("SKILL.md"), "---\nname: refunds\ndescription: Refund an order\n---\n")?;
/// use refrain::server::{Server, Skill};
///
/// let greeting = "---\nname: greeting\ndescription: How we greet customers\n---\n\nSay hello.";
/// let server = Server::builder("docs", "1.0")
///     .skill(Skill::from_dir(&path)?)
///     .skill(Skill::from_files([("SKILL.md", greeting)])?.under("acme/sales"))
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Skill {
    prefix: String,
    name: String,
    frontmatter: Map<String, Value>,
    /// Paths with `/`, sorted, and contents.
    files: Vec<(String, Arc<[u8]>)>,
}

/// Why a skill is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SkillError {
    /// A file or directory could not be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// There is no `SKILL.md`.
    #[error("{SKILL_FILE} is missing")]
    NoSkillFile,
    /// `SKILL.md` is not text.
    #[error("{SKILL_FILE} is not UTF-8")]
    NotText,
    /// The frontmatter is invalid.
    #[error("invalid frontmatter of {SKILL_FILE}: {0}")]
    Frontmatter(#[from] FrontmatterError),
    /// The name or the description is missing, too long, or has characters that are not allowed.
    #[error(
        "invalid {0} in the frontmatter of {SKILL_FILE}: a name has 1 to 64 lower-case letters, digits and single \
         hyphens, a description 1 to 1024 characters"
    )]
    Member(&'static str),
    /// The directory has another name.
    #[error("the directory must have the name of its skill, {name:?}")]
    DirectoryName {
        /// The name of the skill.
        name: String,
    },
    /// The path of a file is invalid, or is a symbolic link.
    #[error(
        "invalid path of a file: {0:?}; symbolic links, backslashes, and empty, `.` or `..` parts are not allowed"
    )]
    Path(String),
    /// There are too many files or bytes.
    #[error("a skill has at most {MAX_FILES} files and {MAX_BYTES} bytes")]
    TooLarge,
}

impl Skill {
    /// Reads a skill from a directory whose name is the name of the skill. Files and directories whose name begins with a dot
    /// are left out. Later changes of the files are not noticed.
    pub fn from_dir(path: impl AsRef<Path>) -> Result<Self, SkillError> {
        let path = path.as_ref();
        let mut files = Vec::new();
        read_dir(path, "", &mut files)?;
        let skill = Self::from_files(files)?;
        let directory = fs::canonicalize(path).ok();
        let directory = directory.as_deref().and_then(Path::file_name);
        if directory.is_some_and(|directory| directory != skill.name.as_str()) {
            return Err(SkillError::DirectoryName { name: skill.name });
        }
        Ok(skill)
    }

    /// Makes a skill from its files: paths with `/` and contents. Use it with `include_str!` or `include_bytes!`.
    pub fn from_files<P: Into<String>, B: AsRef<[u8]>>(
        files: impl IntoIterator<Item = (P, B)>,
    ) -> Result<Self, SkillError> {
        let file = |(path, bytes): (P, B)| (path.into(), Arc::from(bytes.as_ref()));
        let mut files: Vec<(String, Arc<[u8]>)> = files.into_iter().map(file).collect();
        files.sort();
        for (path, _) in &files {
            let is_valid = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\\');
            if !path.split('/').all(is_valid) {
                return Err(SkillError::Path(path.clone()));
            }
        }
        let bytes: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
        if files.len() > MAX_FILES || bytes > MAX_BYTES {
            return Err(SkillError::TooLarge);
        }
        let skill_file = files.iter().find(|(path, _)| path == SKILL_FILE);
        let (_, text) = skill_file.ok_or(SkillError::NoSkillFile)?;
        let text = std::str::from_utf8(text).map_err(|_| SkillError::NotText)?;
        let frontmatter = frontmatter::parse(text)?;
        let member = |key: &'static str, is_valid: fn(&str) -> bool| {
            let text = frontmatter.get(key).and_then(Value::as_str);
            text.filter(|text| is_valid(text))
                .ok_or(SkillError::Member(key))
        };
        let name = member("name", is_skill_name)?.to_owned();
        member("description", |text| {
            (1..=1024).contains(&text.chars().count())
        })?;
        Ok(Self {
            prefix: String::new(),
            name,
            frontmatter,
            files,
        })
    }

    /// Puts the skill under a path, as in `skill://acme/sales/NAME/SKILL.md`. Default: none.
    #[must_use]
    pub fn under(mut self, path: impl Into<String>) -> Self {
        self.prefix = format!("{}/", path.into().trim_matches('/'));
        self
    }

    fn uri(&self, path: &str) -> String {
        encode_uri(&format!("skill://{}{}/{path}", self.prefix, self.name)).into_owned()
    }

    pub(crate) fn info(&self) -> SkillInfo {
        let file = |(path, bytes): &(String, Arc<[u8]>)| SkillFile {
            uri: self.uri(path),
            digest: format!("sha256:{}", hex(digest(&SHA256, bytes).as_ref())),
            size: bytes.len() as u64,
        };
        SkillInfo {
            uri: self.uri(SKILL_FILE),
            frontmatter: self.frontmatter.clone(),
            resources: SkillResources::Files(self.files.iter().map(file).collect()),
        }
    }

    /// The files of the skill as resources.
    pub(crate) fn resources(&self) -> impl Iterator<Item = Resource> {
        self.files.iter().map(|(path, bytes)| {
            let (uri, media_type) = (self.uri(path), media_type(path, bytes));
            let contents = match std::str::from_utf8(bytes) {
                Ok(text) => ResourceContents::text(&uri, media_type, text),
                Err(_) => ResourceContents::blob(&uri, media_type, STANDARD.encode(bytes)),
            };
            let read = move |_: Cx| {
                let contents = contents.clone();
                async move { Ok::<_, refrain_core::Error>(contents) }
            };
            let is_skill_file = path == SKILL_FILE;
            let name = if is_skill_file { &self.name } else { path };
            let resource = Resource::new(uri, name, read)
                .mime_type(media_type)
                .size(bytes.len() as u64);
            match self.frontmatter.get("description").and_then(Value::as_str) {
                Some(description) if is_skill_file => resource.describe(description),
                _ => resource,
            }
        })
    }
}

impl std::fmt::Debug for Skill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Skill")
            .field("name", &self.name)
            .field("files", &self.files.len())
            .finish_non_exhaustive()
    }
}

/// Adds the files of a directory. `prefix` is its path in the skill.
fn read_dir(
    path: &Path,
    prefix: &str,
    files: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), SkillError> {
    let unreadable = |source| SkillError::Read {
        path: path.to_owned(),
        source,
    };
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let inner = format!("{prefix}{name}");
        let kind = entry.file_type().map_err(unreadable)?;
        if kind.is_dir() {
            read_dir(&entry.path(), &format!("{inner}/"), files)?;
        } else if kind.is_file() {
            if files.len() == MAX_FILES {
                return Err(SkillError::TooLarge);
            }
            let path = entry.path();
            let bytes = fs::read(&path).map_err(|source| SkillError::Read { path, source })?;
            files.push((inner, bytes));
        } else {
            // A symbolic link could lead to files that are not meant to be published.
            return Err(SkillError::Path(inner));
        }
    }
    Ok(())
}

/// Whether a name has up to 64 lower-case letters, digits and single hyphens, not at its ends.
fn is_skill_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 64 && name.chars().all(is_valid) && name.split('-').all(|part| !part.is_empty())
}

fn media_type(path: &str, bytes: &[u8]) -> &'static str {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "md" => "text/markdown",
        "json" => "application/json",
        "yaml" | "yml" => "application/yaml",
        "html" => "text/html",
        "css" => "text/css",
        "csv" => "text/csv",
        "js" | "mjs" => "text/javascript",
        "py" => "text/x-python",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "pdf" => "application/pdf",
        _ if std::str::from_utf8(bytes).is_ok() => "text/plain",
        _ => "application/octet-stream",
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The skills of a server, in the order of their registration.
pub(crate) struct Skills(PagedMap<Arc<SkillInfo>>);

impl Skills {
    pub(crate) fn new(skills: &[Skill]) -> Result<Self, BuildError> {
        let mut by_uri = PagedMap::default();
        for skill in skills {
            let info = skill.info();
            let uri = info.uri.clone();
            by_uri.add("skill", &uri, Arc::new(info))?;
        }
        Ok(Self(by_uri))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn list(
        &self,
        cursor: Option<&str>,
        page_size: usize,
        cache: Cache,
    ) -> Result<Reply, RpcError> {
        let cursor = cursor
            .map(|text| Cursor::parse(LIST_NUMBER, text))
            .transpose()?;
        let (page, next) = self.0.page(cursor.as_ref(), page_size);
        let items: Vec<&SkillInfo> = page.into_iter().map(|info| &**info).collect();
        let next = next.map(|cursor| cursor.write(LIST_NUMBER));
        Ok(Reply::complete(ListResult {
            items: &items,
            next_cursor: next.as_deref(),
            cache,
        }))
    }

    pub(crate) fn get(&self, uri: &str, cache: Cache) -> Result<Reply, RpcError> {
        let uri = encode_uri(uri);
        let skill = self.0.get(&uri).ok_or_else(|| {
            RpcError::invalid_params(format!(
                "no skill has the URI {:?}; list them with skills/list",
                Excerpt(&*uri)
            ))
        })?;
        Ok(Reply::complete(SkillResult { skill, cache }))
    }
}
