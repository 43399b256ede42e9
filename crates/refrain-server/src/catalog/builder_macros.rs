//! The methods that tools, prompts, resources and resource templates have in common.

/// Adds the methods of every entry to a type. `$key` is its identifier in `info`; the text says what scopes are for; further
/// fields are shown by `Debug`.
macro_rules! entry {
    ($type:ident, $key:ident, $to:literal $(, $field:ident)*) => {
        impl $type {
            /// A title to display.
            pub fn title(mut self, title: impl Into<String>) -> Self {
                self.info.title = Some(title.into());
                self
            }

            /// A description, by which a model or a person chooses.
            pub fn describe(mut self, description: impl Into<String>) -> Self {
                self.info.description = Some(description.into());
                self
            }

            /// An icon.
            pub fn icon(mut self, icon: refrain_wire::Icon) -> Self {
                self.info.icons.push(icon);
                self
            }

            /// A member of its `_meta`.
            pub fn meta(
                mut self,
                key: impl Into<String>,
                value: impl Into<serde_json::Value>,
            ) -> Self {
                let meta = self.info.meta.get_or_insert_default();
                meta.insert(key.into(), value.into());
                self
            }

            #[doc = concat!("Scopes that a caller needs to ", $to, ", all of them; every round is checked.")]
            /// Over HTTP a caller without one gets status 403 and the list of needed scopes; over stdio they are not
            /// checked.
            pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
                self.entry.scopes.extend(scopes.into_iter().map(Into::into));
                self
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))
                    .field(stringify!($key), &self.info.$key)
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Adds the methods for suggestions to a type; `$name` is what its arguments are called.
macro_rules! completed {
    ($(#[$doc:meta])* $type:ident, $name:ident) => {
        impl $type {
            $(#[$doc])*
            pub fn complete<F, Fut, C>(mut self, $name: impl Into<String>, suggest: F) -> Self
            where
                F: Fn(crate::Typed) -> Fut + Send + Sync + 'static,
                Fut: Future<Output = refrain_core::Result<C>> + Send + 'static,
                C: Into<refrain_wire::Completion>,
            {
                let completer = crate::catalog::complete::completer(suggest);
                self.entry.completers.insert($name.into(), completer);
                self
            }

            #[doc = concat!("Suggests values for this ", stringify!($name), " from a fixed list:")]
            /// those that begin as typed, then those that contain it.
            pub fn suggest<S: Into<String>>(
                mut self,
                $name: impl Into<String>,
                values: impl IntoIterator<Item = S>,
            ) -> Self {
                let values = values.into_iter().map(Into::into).collect();
                let completer = crate::catalog::complete::from_list(values);
                self.entry.completers.insert($name.into(), completer);
                self
            }
        }
    };
}

/// Adds the methods about the content to a type that is read.
macro_rules! content {
    ($type:ident) => {
        impl $type {
            /// The media type of the content.
            pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
                self.info.mime_type = Some(mime_type.into());
                self
            }

            /// Hints for the client: audience, priority and time of the last change.
            pub fn annotations(mut self, annotations: refrain_wire::Annotations) -> Self {
                self.info.annotations = Some(annotations);
                self
            }

            /// How long clients may cache the content, and whether they may share it. Default: not at all.
            pub fn cache(mut self, cache: refrain_wire::Cache) -> Self {
                self.entry.cache = cache;
                self
            }
        }
    };
}

pub(crate) use {completed, content, entry};
