//! A checkpoint: safetensors files, mapped, as named tensors. All of it is untrusted input.

mod file;
mod header;

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use self::file::{MappedFile, refused};
pub use self::header::Entry;
use crate::named::{Named, Object};
use crate::status::{Error, Result, Status};

/// How the name of an index ends, the file that says which tensor is in which file.
const INDEX_SUFFIX: &str = ".safetensors.index.json";

/// The index that is taken when there are several.
const PREFERRED_INDEX: &str = "model.safetensors.index.json";

/// A checkpoint in one file.
const SINGLE_FILE: &str = "model.safetensors";

/// The longest index that is read; those of the largest models have some megabytes.
const MOST_INDEX_BYTES: usize = 1 << 28;

/// The tensors of one or several safetensors files.
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<MappedFile>,
    /// (number of the file, what it says of the tensor).
    tensors: HashMap<String, (usize, Entry)>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: Named<String>,
}

impl Checkpoint {
    /// Opens a folder or a single file and reads all headers.
    ///
    /// In a folder the files are those that its index names; without an index `model.safetensors`; without that, all
    /// that end in `.safetensors`. Files may be links, as in the cache of the Hugging Face hub.
    ///
    /// # Errors
    /// `BadCheckpoint`, with the file.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = fs::metadata(path).map_err(|error| {
            Error::new(Status::BadCheckpoint, format!("checkpoint '{}' cannot be read: {error}", path.display()))
        })?;
        let mut checkpoint = Self { path: path.to_owned(), files: Vec::new(), tensors: HashMap::new() };
        if !metadata.is_dir() {
            checkpoint.add(path)?;
            return Ok(checkpoint);
        }
        let names = file_names(path)?;
        if let Some(index) = find_index(path, &names)? {
            checkpoint.add_indexed(&path.join(index))?;
        } else if names.iter().any(|name| name == SINGLE_FILE) {
            checkpoint.add(&path.join(SINGLE_FILE))?;
        } else {
            for name in names.iter().filter(|name| name.ends_with(".safetensors")) {
                checkpoint.add(&path.join(name))?;
            }
        }
        if checkpoint.files.is_empty() {
            let what = format!("checkpoint folder '{}' holds no safetensors file", path.display());
            return Err(Error::new(Status::BadCheckpoint, what));
        }
        Ok(checkpoint)
    }

    /// What the tensor called `name` is, and its bytes: compact, in row-major order.
    pub fn get(&self, name: &str) -> Option<(&Entry, &[u8])> {
        let (file, entry) = self.tensors.get(name)?;
        Some((entry, &self.files[*file].bytes()[entry.bytes.clone()]))
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses files that were changed since they were opened.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(MappedFile::check_unchanged)
    }

    /// Adds the tensors of a safetensors file.
    fn add(&mut self, path: &Path) -> Result<()> {
        let file = MappedFile::open(path)?;
        let number = self.files.len();
        for entry in header::read(file.bytes()).map_err(|what| refused(path, what))? {
            if let Some((other, _)) = self.tensors.get(&entry.name) {
                let other = self.files[*other].path().display();
                return Err(refused(path, format_args!("has a tensor '{}', as '{other}' has", entry.name)));
            }
            self.tensors.insert(entry.name.clone(), (number, entry));
        }
        self.files.push(file);
        Ok(())
    }

    /// Adds the files that an index names, and checks that each holds what the index says.
    fn add_indexed(&mut self, path: &Path) -> Result<()> {
        let index = MappedFile::open(path)?;
        if index.bytes().len() > MOST_INDEX_BYTES {
            return Err(refused(path, "is too long for an index"));
        }
        let Object(Index { weight_map: Named(tensors) }) = serde_json::from_slice(index.bytes())
            .map_err(|error| refused(path, format_args!("is no index of safetensors files: {error}")))?;
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (tensor, name) in &tensors {
            if !numbers.contains_key(name.as_str()) {
                if !is_plain_name(name) {
                    let what = format!("puts tensor '{tensor}' into '{name}', which is no file name in its folder");
                    return Err(refused(path, what));
                }
                numbers.insert(name, self.files.len());
                self.add(&path.with_file_name(name))?;
            }
            if self.tensors.get(tensor).is_none_or(|(number, _)| *number != numbers[name.as_str()]) {
                let what = format!("puts tensor '{tensor}' into '{name}', which does not hold it");
                return Err(refused(path, what));
            }
        }
        Ok(())
    }
}

/// The names of the files of a folder, sorted. A name that is not UTF-8 is none that a checkpoint has.
fn file_names(folder: &Path) -> Result<Vec<String>> {
    let failed = |error: std::io::Error| {
        Error::new(Status::BadCheckpoint, format!("checkpoint folder '{}' cannot be read: {error}", folder.display()))
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The index among the files of a folder, if there is one.
fn find_index<'n>(folder: &Path, names: &'n [String]) -> Result<Option<&'n str>> {
    let indices: Vec<&str> = names.iter().map(String::as_str).filter(|name| name.ends_with(INDEX_SUFFIX)).collect();
    match indices[..] {
        [] => Ok(None),
        [index] => Ok(Some(index)),
        _ if indices.contains(&PREFERRED_INDEX) => Ok(Some(PREFERRED_INDEX)),
        _ => Err(Error::new(
            Status::BadCheckpoint,
            format!(
                "checkpoint folder '{}' has several indices and no {PREFERRED_INDEX}: {}; name one file",
                folder.display(),
                indices.join(", ")
            ),
        )),
    }
}

/// Whether `name` names a file of a folder and nothing outside of it.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(part)) if part == name)
        && components.next().is_none()
        && !name.contains(['\\', '\0'])
}
