//! Macros for the builder methods that several kinds of entries share.

/// Adds the methods that all entries have. `$key` is the field of `info` that identifies the entry, `$to` is the verb in the
/// documentation of `scopes`, and the `$field`s are further fields for `Debug`.
macro_rules! impl_entry {
    ($type:ident, $key:ident, $to:literal $(, $field:ident)*) => {
        impl $type {
            /// Sets the title for display.
            pub fn title(mut self, title: impl Into<String>) -> Self {
                self.info.set("title", |info| info.title = Some(title.into()));
                self
            }

            /// Sets the description, by which models and people choose the entry.
            pub fn describe(mut self, description: impl Into<String>) -> Self {
                let description = Some(description.into());
                self.info.set("description", |info| info.description = description);
                self
            }

            /// Adds an icon.
            pub fn icon(mut self, icon: refrain_wire::Icon) -> Self {
                self.info.set("icons", |info| info.icons.push(icon));
                self
            }

            /// Adds a member to `_meta`.
            pub fn meta(
                mut self,
                key: impl Into<String>,
                value: impl Into<serde_json::Value>,
            ) -> Self {
                self.info.set("_meta", |info| {
                    let meta = info.meta.get_or_insert_default();
                    meta.insert(key.into(), value.into());
                });
                self
            }

            #[doc = concat!("Adds scopes that a caller needs to ", $to, ". Every round is checked.")]
            /// Over HTTP, a caller who lacks one gets status 403 and the list of required scopes. Over stdio, scopes are
            /// not checked.
            pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
                self.entry.scopes.extend(scopes.into_iter().map(Into::into));
                self
            }

            /// Runs all calls of one caller on the same instance, for handlers with state in
            /// memory. The instance is chosen from the [`peers`](crate::ServerBuilder::peers) by
            /// the principal, and other instances relay the request to it. If it cannot be
            /// reached, the next peer takes over, without that state. Without peers, calls run
            /// where they arrive.
            ///
            /// The calls of a legacy session run on the instance that holds the session. A task that is not live may be
            /// continued by any instance. All anonymous callers are one principal.
            pub fn pin_to_caller(mut self) -> Self {
                self.entry.pin = Some(crate::catalog::Pin::Caller);
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

/// Adds the methods for completion. `$name` is `argument` or `variable`.
macro_rules! impl_completion {
    ($(#[$doc:meta])* $type:ident, $name:ident) => {
        impl $type {
            $(#[$doc])*
            pub fn complete<F, Fut, C>(mut self, $name: impl Into<String>, suggest: F) -> Self
            where
                F: Fn(crate::CompletionInput) -> Fut + Send + Sync + 'static,
                Fut: Future<Output = refrain_core::Result<C>> + Send + 'static,
                C: Into<refrain_wire::Completion>,
            {
                let completer = crate::catalog::complete::completer(suggest);
                self.entry.completers.insert($name.into(), completer);
                self
            }

            #[doc = concat!("Suggests values for this ", stringify!($name), " from a fixed list:")]
            /// first the values that start with the typed text, then those that contain it.
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

/// Adds the methods for the content of resources and resource templates.
macro_rules! impl_content {
    ($type:ident) => {
        impl $type {
            /// Sets the media type of the content.
            pub fn mime_type(mut self, mime_type: impl Into<String>) -> Self {
                let mime_type = Some(mime_type.into());
                self.info.set("mimeType", |info| info.mime_type = mime_type);
                self
            }

            /// Sets hints for the client: audience, priority and time of the last change.
            pub fn annotations(mut self, annotations: refrain_wire::Annotations) -> Self {
                let annotations = Some(annotations);
                self.info
                    .set("annotations", |info| info.annotations = annotations);
                self
            }

            /// Sets how long clients may cache the content and whether they may share it. Default: no caching.
            pub fn cache(mut self, cache: refrain_wire::Cache) -> Self {
                self.entry.cache = cache;
                self
            }
        }
    };
}

pub(crate) use {impl_completion, impl_content, impl_entry};
