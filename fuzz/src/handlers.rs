//! Handlers that use all operations of [`Cx`] and never panic, even with a random journal.

use futures_util::future::{Either, join, join3, select};
use refrain_core::{
    Answer, Cx, Elicit, Error, Field, Form, HandlerFuture, Incomplete, Outcome, Result, ok,
};
use refrain_wire::{LogLevel, ResultBody, SamplingParams};
use serde_json::{Value, json};
use std::pin::pin;
use std::sync::OnceLock;

/// A form with an integer.
#[derive(serde::Deserialize)]
struct Num {
    v: i64,
}

impl Elicit for Num {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| Form::new([Field::integer("v").min(0.0).max(1000.0)]))
    }
}

/// A form with a field of every kind.
#[derive(serde::Deserialize)]
struct Person {
    name: String,
}

impl Elicit for Person {
    fn form() -> &'static Form {
        static FORM: OnceLock<Form> = OnceLock::new();
        FORM.get_or_init(|| {
            Form::new([
                Field::string("name").min(1.0).max(20.0),
                Field::email("mail").optional(),
                Field::uri("home").optional(),
                Field::date("born").optional(),
                Field::date_time("seen").optional(),
                Field::number("height").min(0.1).optional(),
                Field::boolean("agreed").optional(),
                Field::one_of("size", ["s", "m", "l"]).optional(),
                Field::any_of("tags", ["a", "b"]).max(2.0).optional(),
            ])
        })
    }
}

/// The fingerprints of the handlers' asks: FNV-1a of the schema, or 0 without a schema.
pub fn fingerprints() -> &'static [u64] {
    static ALL: OnceLock<[u64; 4]> = OnceLock::new();
    ALL.get_or_init(|| {
        let of = |form: &Form| {
            let schema = form.json().get().bytes();
            schema.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        [0, of(Num::form()), of(Person::form()), of(&dynamic_form())]
    })
}

/// A form built at run time.
fn dynamic_form() -> Form {
    Form::new([Field::string("free").optional()])
}

/// The number of handlers.
pub const HANDLERS: u8 = 8;

/// The handler with this number, modulo [`HANDLERS`].
pub fn handler(number: u8) -> fn(Cx) -> HandlerFuture {
    match number % HANDLERS {
        0 => |cx| complete(sequential(cx)),
        1 => |cx| complete(concurrent(cx)),
        2 => |cx| Box::pin(explicit(cx)),
        3 => |cx| complete(endless(cx)),
        4 => |cx| complete(racing(cx)),
        5 => |cx| complete(ignoring_errors(cx)),
        6 => |cx| complete(scoped(cx)),
        _ => |cx| complete(misusing(cx)),
    }
}

fn complete(work: impl Future<Output = Result<Value>> + Send + 'static) -> HandlerFuture {
    Box::pin(async move { finished(&work.await?) })
}

fn finished(out: &Value) -> Result<Outcome> {
    let body = ResultBody::from_members(json!({ "out": out }));
    body.map(Outcome::Complete).map_err(Error::msg)
}

/// An ask, a step, and a loop with checkpoints.
async fn sequential(cx: Cx) -> Result<Value> {
    let (now, drawn) = (cx.now(), cx.random());
    let first = cx.elicit::<Num>("n", "How many?").await?.v;
    let more: i64 = cx.step("s", async { ok(first.wrapping_add(1)) }).await?;
    cx.progress(more as f64, Some(3.0), "on the way");
    let mut done: u32 = cx.resume("at")?.unwrap_or_default();
    let mut names = Vec::new();
    while done < 3 {
        match cx.ask::<Person>("item", "Who?").await? {
            Answer::Accepted(person) => names.push(person.name),
            Answer::Declined => break,
            Answer::Cancelled => names.push(String::new()),
        }
        let written: Result<String> = cx.step("work", async { ok("done".to_owned()) }).await;
        cx.log(LogLevel::Info, written.unwrap_or_else(|e| e.to_string()));
        done += 1;
        cx.checkpoint("at", &done).await?;
    }
    Ok(json!([format!("{now:?}"), drawn, more, names, done]))
}

/// Concurrent asks of every kind and steps.
async fn concurrent(cx: Cx) -> Result<Value> {
    let asks = join3(
        cx.elicit::<Num>("n", "?"),
        cx.roots("roots"),
        cx.sample("model", SamplingParams::new(10).user("hi")),
    );
    let url = cx.elicit_url("url", "Sign in", "https://example.com/", || async {
        ok(true)
    });
    let steps = join(
        cx.step("s", async { ok(1_i64) }),
        cx.step("work", async { Err::<String, _>(Error::msg("no")) }),
    );
    let ((n, roots, model), url, (s, work)) = join3(asks, url, steps).await;
    url?;
    Ok(json!([
        n?.v,
        roots?.len(),
        model?.text(),
        s?,
        work.unwrap_or_else(|e| e.to_string())
    ]))
}

/// The explicit style, without awaits.
async fn explicit(cx: Cx) -> Result<Outcome> {
    let seen: u32 = cx.state()?.unwrap_or_default();
    let answer = cx.answer("n");
    if let (Some(answer), true) = (&answer, seen > 2) {
        return finished(&json!(answer.get()));
    }
    let reply = Incomplete::new().state(&seen.saturating_add(1))?;
    let reply = match seen {
        0 => reply.form("n", "?", Num::form()).roots("roots"),
        1 => reply.url("url", "?", "https://example.com/"),
        2 => reply.sample("model", SamplingParams::new(10)),
        _ => reply.form("n", "?", Person::form()),
    };
    Ok(Outcome::Incomplete(reply))
}

/// Asks until the user declines.
async fn endless(cx: Cx) -> Result<Value> {
    let mut sum = 0_i64;
    loop {
        match cx.ask::<Num>("item", "Another?").await? {
            Answer::Accepted(num) => sum = sum.wrapping_add(num.v),
            Answer::Declined => return Ok(json!(sum)),
            Answer::Cancelled => {}
        }
        cx.checkpoint("at", &sum).await?;
    }
}

/// Races asks and steps, and has an at-most-once effect.
async fn racing(cx: Cx) -> Result<Value> {
    let first = {
        let ask = pin!(cx.elicit::<Num>("n", "?"));
        let step = pin!(cx.step_with_key("s", |key| async move { ok(key) }));
        match select(ask, step).await {
            Either::Left((num, _)) => num?.v.to_string(),
            Either::Right((key, _)) => key?,
        }
    };
    let once: Result<i64> = cx.once("work", async { ok(7) }).await;
    let again = {
        let roots = pin!(cx.roots("roots"));
        let model = pin!(cx.sample("model", SamplingParams::new(1)));
        match select(roots, model).await {
            Either::Left((roots, model)) => json!([roots?.len(), model.await?.model]),
            Either::Right((model, _)) => json!(model?.model),
        }
    };
    Ok(json!([first, once.ok(), again]))
}

/// Ignores all errors.
async fn ignoring_errors(cx: Cx) -> Result<Value> {
    let mut texts = Vec::new();
    for i in 0..3_u32 {
        let answer = cx.elicit::<Person>("item", "?").await;
        texts.push(answer.map_or_else(|e| e.to_string(), |person| person.name));
        let _ = cx.roots("roots").await;
        let _: Result<u32> = cx.step("s", async { ok(i) }).await;
        let waited = cx.elicit_url("url", "?", "https://example.com/", || async { ok(i > 0) });
        let _ = waited.await;
        texts.push(cx.random().to_string());
    }
    Ok(json!(texts))
}

/// The same names in different scopes.
async fn scoped(cx: Cx) -> Result<Value> {
    let (a, b) = (cx.scope("a"), cx.scope("b"));
    let one = async {
        let num = a.elicit::<Num>("n", "?").await?.v;
        let step: i64 = a.step("s", async { ok(num) }).await?;
        a.checkpoint("at", &step).await?;
        ok(step)
    };
    let two = async {
        let inner = b.scope("a");
        let (x, y) = join(b.elicit::<Num>("n", "?"), inner.roots("n")).await;
        ok(x?.v.wrapping_add(y?.len() as i64))
    };
    let (one, two) = join(one, two).await;
    let last = cx.ask_form("n", "?", &dynamic_form()).await?;
    let last = matches!(last, Answer::Accepted(_));
    Ok(json!([one?, two?, last, a.resume::<i64>("at")?]))
}

/// Misuses the API, which is reported as faults.
async fn misusing(cx: Cx) -> Result<Value> {
    let first = cx.elicit::<Num>("n", "?").await?.v;
    if first == 1 {
        let inner = cx.clone();
        let nested = async move { ok(inner.elicit::<Num>("item", "?").await?.v) };
        return Ok(json!(cx.step("s", nested).await?));
    }
    let (x, y) = join(cx.roots("roots"), cx.roots("roots")).await;
    Ok(json!([x?.len(), y?.len()]))
}
