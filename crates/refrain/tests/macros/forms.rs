//! The schema that each feature of `#[derive(Elicit)]` sends.

use refrain::Elicit;
use serde::Deserialize;
use serde_json::{Value, json};

fn schema<T: Elicit>() -> Value {
    serde_json::from_str(T::form().json().get()).expect("a form is JSON")
}

fn property<T: Elicit>(name: &str) -> Value {
    schema::<T>()["properties"][name].clone()
}

#[derive(Debug, PartialEq, Deserialize, Elicit)]
#[serde(rename_all = "lowercase")]
enum Resolution {
    Fixed,
    Duplicate,
    #[serde(rename = "won't fix")]
    Refused,
    #[serde(skip)]
    #[allow(dead_code)]
    Internal,
}

#[derive(Debug, PartialEq, Deserialize, Elicit)]
enum Color {
    #[elicit(title = "Brick red")]
    Red,
    #[elicit(title = "Sea green")]
    Green,
    Blue,
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Primitives {
    text: String,
    truth: bool,
    tiny: i8,
    small: i16,
    medium: i32,
    large: i64,
    sized: isize,
    byte: u8,
    word: u16,
    long: u32,
    huge: u64,
    count: usize,
    single: f32,
    double: f64,
}

#[test]
fn primitive_fields_have_their_schema_types() {
    let expected = [
        ("text", "string"),
        ("truth", "boolean"),
        ("tiny", "integer"),
        ("small", "integer"),
        ("medium", "integer"),
        ("large", "integer"),
        ("sized", "integer"),
        ("byte", "integer"),
        ("word", "integer"),
        ("long", "integer"),
        ("huge", "integer"),
        ("count", "integer"),
        ("single", "number"),
        ("double", "number"),
    ];
    let schema = schema::<Primitives>();
    assert_eq!(schema["type"], "object");
    for (name, kind) in expected {
        // Unsigned integers have no bounds by default either.
        assert_eq!(schema["properties"][name], json!({"type": kind}), "{name}");
    }
    let names: Vec<&str> = expected.iter().map(|(name, _)| *name).collect();
    assert_eq!(schema["required"], json!(names));
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct InOrder {
    zebra: String,
    apple: bool,
    mango: Option<u8>,
}

#[test]
fn fields_keep_their_order_and_options_are_optional() {
    assert_eq!(
        InOrder::form().json().get(),
        r#"{"type":"object","properties":{"zebra":{"type":"string"},"apple":{"type":"boolean"},"mango":{"type":"integer"}},"required":["zebra","apple"]}"#
    );
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Described {
    /// From the doc comment,
    /// as written.
    ///
    /// And more.
    commented: String,
    /// Not this.
    #[elicit(description = "From the key")]
    keyed: String,
    #[elicit(title = "A title")]
    #[elicit(description = "In two attributes")]
    titled: bool,
}

#[test]
fn titles_and_descriptions_are_in_the_schema() {
    assert_eq!(
        schema::<Described>()["properties"],
        json!({
            "commented": {
                "type": "string",
                "description": "From the doc comment,\nas written.\n\nAnd more.",
            },
            "keyed": {"type": "string", "description": "From the key"},
            "titled": {"type": "boolean", "title": "A title", "description": "In two attributes"},
        })
    );
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Formats {
    #[elicit(format = "email")]
    email: String,
    #[elicit(format = "uri")]
    uri: Option<String>,
    #[elicit(format = "date", title = "Day")]
    date: String,
    #[elicit(format = "date-time", default = "2026-07-28T12:00:00Z")]
    date_time: String,
}

#[test]
fn formats_are_in_the_schema() {
    assert_eq!(
        schema::<Formats>(),
        json!({
            "type": "object",
            "properties": {
                "email": {"type": "string", "format": "email"},
                "uri": {"type": "string", "format": "uri"},
                "date": {"type": "string", "title": "Day", "format": "date"},
                "date_time": {
                    "type": "string",
                    "format": "date-time",
                    "default": "2026-07-28T12:00:00Z",
                },
            },
            "required": ["email", "date", "date_time"],
        })
    );
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Choices {
    plain: Resolution,
    titled: Color,
    #[elicit(default = "duplicate")]
    maybe: Option<Resolution>,
    #[elicit(min = 1, max = 2, default = ["fixed", "won't fix"])]
    several: Vec<Resolution>,
    #[elicit(default = [])]
    several_titled: Option<Vec<Color>>,
}

#[test]
fn enum_field_is_a_single_choice() {
    assert_eq!(
        property::<Choices>("plain"),
        json!({"type": "string", "enum": ["fixed", "duplicate", "won't fix"]})
    );
    assert_eq!(
        property::<Choices>("titled"),
        json!({
            "type": "string",
            "oneOf": [
                {"const": "Red", "title": "Brick red"},
                {"const": "Green", "title": "Sea green"},
                {"const": "Blue", "title": "Blue"},
            ],
        })
    );
    assert_eq!(property::<Choices>("maybe")["default"], "duplicate");
}

#[test]
fn vec_of_enum_is_a_multiple_choice() {
    assert_eq!(
        property::<Choices>("several"),
        json!({
            "type": "array",
            "items": {"type": "string", "enum": ["fixed", "duplicate", "won't fix"]},
            "minItems": 1,
            "maxItems": 2,
            "default": ["fixed", "won't fix"],
        })
    );
    assert_eq!(
        property::<Choices>("several_titled"),
        json!({
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": "Red", "title": "Brick red"},
                    {"const": "Green", "title": "Sea green"},
                    {"const": "Blue", "title": "Blue"},
                ],
            },
            "default": [],
        })
    );
    assert_eq!(
        schema::<Choices>()["required"],
        json!(["plain", "titled", "several"])
    );
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Limits {
    #[elicit(min = 1, max = 39)]
    length: String,
    #[elicit(min = -5, max = 0x10)]
    whole: i32,
    #[elicit(min = 0)]
    unsigned: Option<u64>,
    #[elicit(min = -0.5, max = 2)]
    number: f64,
}

#[test]
fn bounds_are_in_the_schema() {
    assert_eq!(
        schema::<Limits>()["properties"],
        json!({
            "length": {"type": "string", "minLength": 1, "maxLength": 39},
            "whole": {"type": "integer", "minimum": -5, "maximum": 16},
            "unsigned": {"type": "integer", "minimum": 0},
            "number": {"type": "number", "minimum": -0.5, "maximum": 2},
        })
    );
}

#[derive(Debug, Deserialize, Elicit)]
#[allow(dead_code)]
struct Defaults {
    #[elicit(default = "octocat")]
    text: String,
    #[elicit(default = false)]
    truth: bool,
    #[elicit(default = -3)]
    whole: i8,
    #[elicit(default = 0.25)]
    number: f32,
    #[elicit(default = 2)]
    round: f64,
    #[elicit(default = "Blue")]
    color: Color,
    #[serde(default)]
    left_out: String,
    #[serde(default = "three")]
    computed: u8,
}

fn three() -> u8 {
    3
}

#[test]
fn defaults_are_in_the_schema() {
    assert_eq!(
        schema::<Defaults>()["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, field)| (name.as_str(), field["default"].clone()))
            .filter(|(_, default)| !default.is_null())
            .collect::<std::collections::BTreeMap<_, _>>(),
        [
            ("text", json!("octocat")),
            ("truth", json!(false)),
            ("whole", json!(-3)),
            ("number", json!(0.25)),
            ("round", json!(2)),
            ("color", json!("Blue")),
        ]
        .into()
    );
}

#[test]
fn only_a_serde_default_makes_a_field_optional() {
    assert_eq!(
        schema::<Defaults>()["required"],
        json!(["text", "truth", "whole", "number", "round", "color"])
    );
}

#[derive(Debug, Default, Deserialize, Elicit)]
#[serde(default, rename_all = "camelCase")]
#[allow(dead_code)]
struct AllOptional {
    first_name: String,
    #[serde(rename = "surname")]
    last_name: String,
    #[serde(skip)]
    cached: Vec<(u8, u8)>,
    r#type: bool,
}

#[test]
fn container_attributes_apply_to_all_fields() {
    assert_eq!(
        schema::<AllOptional>(),
        json!({
            "type": "object",
            "properties": {
                "firstName": {"type": "string"},
                "surname": {"type": "string"},
                "type": {"type": "boolean"},
            },
        })
    );
}

/// Checks the form of a struct and the choices of an enum with one of serde's rename rules.
macro_rules! rename_rule {
    ($test:ident, $rule:literal, $field:literal, $variant:literal) => {
        #[test]
        fn $test() {
            #[derive(Debug, PartialEq, Deserialize, Elicit)]
            #[serde(rename_all = $rule)]
            enum Taste {
                VeryTasty,
            }

            #[derive(Deserialize, Elicit)]
            #[serde(rename_all = $rule)]
            struct Dish {
                how_good: Taste,
            }

            let field = &schema::<Dish>()["properties"][$field];
            assert_eq!(*field, json!({"type": "string", "enum": [$variant]}));
            let answer = json!({$field: $variant});
            assert_eq!(Dish::form().check(&answer), Ok(()));
            let dish: Dish = serde_json::from_value(answer).unwrap();
            assert_eq!(dish.how_good, Taste::VeryTasty);
        }
    };
}

rename_rule!(lowercase_is_applied, "lowercase", "how_good", "verytasty");
rename_rule!(uppercase_is_applied, "UPPERCASE", "HOW_GOOD", "VERYTASTY");
rename_rule!(pascal_case_is_applied, "PascalCase", "HowGood", "VeryTasty");
rename_rule!(camel_case_is_applied, "camelCase", "howGood", "veryTasty");
rename_rule!(
    snake_case_is_applied,
    "snake_case",
    "how_good",
    "very_tasty"
);
rename_rule!(
    screaming_snake_case_is_applied,
    "SCREAMING_SNAKE_CASE",
    "HOW_GOOD",
    "VERY_TASTY"
);
rename_rule!(
    kebab_case_is_applied,
    "kebab-case",
    "how-good",
    "very-tasty"
);
rename_rule!(
    screaming_kebab_case_is_applied,
    "SCREAMING-KEBAB-CASE",
    "HOW-GOOD",
    "VERY-TASTY"
);

#[derive(Deserialize, Elicit)]
struct Confirm {}

#[test]
fn form_without_fields_is_allowed() {
    assert_eq!(
        schema::<Confirm>(),
        json!({"type": "object", "properties": {}})
    );
}

#[test]
fn valid_form_content_deserializes() {
    let answer = json!({
        "plain": "won't fix",
        "titled": "Green",
        "several": ["fixed"],
    });
    assert_eq!(Choices::form().check(&answer), Ok(()));
    let choices: Choices = serde_json::from_value(answer).unwrap();
    assert_eq!(choices.plain, Resolution::Refused);
    assert_eq!(choices.titled, Color::Green);
    assert_eq!(choices.maybe, None);
    assert_eq!(choices.several, [Resolution::Fixed]);
    assert!(choices.several_titled.is_none());
}

#[test]
fn skipped_variant_is_not_a_choice() {
    let answer = json!({"plain": "internal", "titled": "Red", "several": ["fixed"]});
    let rejected = Choices::form().check(&answer).expect_err("no such choice");
    assert_eq!(
        rejected.to_string(),
        "plain must be one of fixed, duplicate, won't fix"
    );
}

#[test]
fn form_is_built_once() {
    assert!(std::ptr::eq(Choices::form(), Choices::form()));
}
