//! The Skills extension (SEP-2640): skills are directories of files that the server serves as resources.

use crate::error::RpcError;
use crate::list::{Cache, ListEntry};
use crate::members::Reader;
use crate::meta::Meta;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// The name of the Skills extension.
pub const SKILLS_EXTENSION: &str = "io.modelcontextprotocol/skills";

/// A skill, as `skills/list` and `skills/get` describe it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkillInfo {
    /// The URI of its `SKILL.md`.
    pub uri: String,
    /// The frontmatter of its `SKILL.md`, with at least `name` and `description`.
    pub frontmatter: Map<String, Value>,
    /// Its files.
    pub resources: SkillResources,
}

impl SkillInfo {
    /// A text of the frontmatter, such as `name` or `description`.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.frontmatter.get(key)?.as_str()
    }
}

impl ListEntry for SkillInfo {
    const MEMBER: &'static str = "skills";
}

/// The files of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SkillResources {
    /// All files, `SKILL.md` included.
    Files(Vec<SkillFile>),
    /// The word `dynamic`: the files have no fixed content.
    Dynamic(String),
}

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillFile {
    /// Its URI.
    pub uri: String,
    /// The SHA-256 of its bytes, as `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// The number of its bytes.
    pub size: u64,
}

/// The result of `skills/get`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SkillResult<'a> {
    /// The skill.
    pub skill: &'a SkillInfo,
    /// How long the result may be cached, and by whom.
    #[serde(flatten)]
    pub cache: Cache,
}

/// The params of `skills/get`.
#[derive(Debug, Clone)]
pub struct SkillParams<'a> {
    /// The `_meta` of the request.
    pub meta: Meta<'a>,
    /// The URI of the skill's `SKILL.md`.
    pub uri: Cow<'a, str>,
}

/// Reads the params of `skills/get`.
pub fn decode_skill<'a>(params: Option<&'a RawValue>) -> Result<SkillParams<'a>, RpcError> {
    let params = Reader::params(params, "uri and _meta")?;
    let missing = || params.error("uri", "is missing; skills/get needs it");
    Ok(SkillParams {
        meta: params.meta()?,
        uri: params.text("uri")?.ok_or_else(missing)?,
    })
}
