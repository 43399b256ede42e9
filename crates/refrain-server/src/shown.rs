//! What clients show of everything that is listed: the methods that tools, prompts and resources have in common.

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

pub(crate) use shown;
