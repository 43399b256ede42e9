//! Suggestions for misspelt names.

use std::cmp::Ordering;

/// The Jaro-Winkler similarity, from 0 to 1, from which a name is suggested.
const MIN_SIMILARITY: f64 = 0.8;
/// Maximum number of suggested names.
const MAX_SUGGESTED: usize = 3;
/// Longer names are not compared, because a comparison takes quadratic time.
const MAX_BYTES: usize = 128;

/// The names that are similar to a misspelt one: at most three, the most similar first.
///
/// ```
/// use refrain_wire::similar_names;
///
/// assert_eq!(similar_names("ecko", ["sum", "echo"]), ["echo"]);
/// assert!(similar_names("zebra", ["sum", "echo"]).is_empty());
/// ```
pub fn similar_names<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let is_short = |name: &str| name.len() <= MAX_BYTES;
    if !is_short(name) {
        return Vec::new();
    }
    let name = name.to_lowercase();
    let names = names.into_iter().filter(|other| is_short(other));
    let mut similar: Vec<(f64, &str)> = names
        .map(|other| (strsim::jaro_winkler(&name, &other.to_lowercase()), other))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    similar.sort_by(|(a, _), (b, _)| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    similar.truncate(MAX_SUGGESTED);
    similar.into_iter().map(|(_, name)| name).collect()
}

/// The question `did you mean "x", "y"?`, if there are similar names.
pub fn did_you_mean<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let similar = similar_names(name, names);
    let quoted: Vec<String> = similar.iter().map(|name| format!("{name:?}")).collect();
    (!quoted.is_empty()).then(|| format!("did you mean {}?", quoted.join(", ")))
}
