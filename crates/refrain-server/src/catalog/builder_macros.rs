//! The methods that tools, prompts, resources and resource templates have in common.

/// Gives a type with an `info` the methods that say how it is shown.
macro_rules! shown {
    ($type:ident) => {
        impl $type {
            /// A title to show.
            pub fn title(mut self, title: impl Into<String>) -> Self {
                self.info.title = Some(title.into());
                self
            }

            /// What it is for: what a model, or a person, chooses it by.
            pub fn describe(mut self, description: impl Into<String>) -> Self {
                self.info.description = Some(description.into());
                self
            }

            /// A picture to show beside it.
            pub fn icon(mut self, icon: refrain_wire::Icon) -> Self {
                self.info.icons.push(icon);
                self
            }

            /// A further fact about it, for its `_meta`.
            pub fn meta(
                mut self,
                key: impl Into<String>,
                value: impl Into<serde_json::Value>,
            ) -> Self {
                let meta = self.info.meta.get_or_insert_default();
                meta.insert(key.into(), value.into());
                self
            }
        }
    };
}

/// Gives a type with `scopes` the method that adds to them. The text says what they are needed for.
macro_rules! scoped {
    ($type:ident, $to:literal) => {
        impl $type {
            #[doc = concat!("Scopes that a caller needs to ", $to, ", all of them; every round is checked.")]
            /// Over HTTP a caller who lacks one is answered with 403 and told which are needed; over stdio they are
            /// not asked for.
            pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
                self.scopes.extend(scopes.into_iter().map(Into::into));
                self
            }
        }
    };
}

/// Gives a type with `completers` the methods that add to them. They are for what is called `$name`.
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
                self.completers.insert($name.into(), completer);
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
                self.completers.insert($name.into(), completer);
                self
            }
        }
    };
}

/// Gives a type that is read the methods that say how its content is to be taken.
macro_rules! content {
    ($type:ident) => {
        impl $type {
            /// The media type of the content.
            pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
                self.info.mime_type = Some(mime_type.into());
                self
            }

            /// Hints for the client: whom it is meant for, how much it matters, when it last changed.
            pub fn annotations(mut self, annotations: refrain_wire::Annotations) -> Self {
                self.info.annotations = Some(annotations);
                self
            }

            /// How long clients may keep what they read, and whether they may share it. Default: not at all.
            pub fn cache(mut self, cache: refrain_wire::Cache) -> Self {
                self.cache = cache;
                self
            }
        }
    };
}

pub(crate) use {completed, content, scoped, shown};
