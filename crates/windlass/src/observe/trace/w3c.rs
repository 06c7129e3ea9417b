//! Reads and writes the W3C trace context in an event's metadata.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The trace fields of the metadata; other fields are ignored.
#[derive(Deserialize)]
struct TraceFields {
    traceparent: Option<String>,
    tracestate: Option<String>,
}

/// The span context in the metadata, if there is a valid one.
pub(super) fn extract_context(metadata: &RawValue) -> Option<SpanContext> {
    let fields: TraceFields = serde_json::from_str(metadata.get()).ok()?;
    let state = fields.tracestate.and_then(|state| TraceState::from_str(&state).ok()).unwrap_or_default();
    parse(&fields.traceparent?, state)
}

/// Parses `version-trace-span-flags` in hexadecimal. Later versions may append fields.
fn parse(traceparent: &str, state: TraceState) -> Option<SpanContext> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [version, trace, span, flags, ..] = parts[..] else { return None };
    let lengths = (version.len(), trace.len(), span.len(), flags.len());
    if lengths != (2, 32, 16, 2) || version == "ff" || (version == "00" && parts.len() > 4) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

/// The metadata with this span context added; `None` if it has one already or is not an object.
pub(super) fn inject_context(metadata: Option<&RawValue>, span: &SpanContext) -> Option<Box<RawValue>> {
    let text = metadata.map_or("{}", RawValue::get);
    let existing: TraceFields = serde_json::from_str(text).ok()?;
    let rest = text.trim_start().strip_prefix('{').filter(|_| existing.traceparent.is_none())?;
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let mut added = format!("\"traceparent\":\"00-{trace}-{id}-{flags:02x}\"");
    let state = span.trace_state().header();
    if !state.is_empty() && existing.tracestate.is_none() {
        added += &format!(",\"tracestate\":{}", serde_json::to_string(&state).ok()?);
    }
    let comma = if rest.trim_start().starts_with('}') { "" } else { "," };
    RawValue::from_string(format!("{{{added}{comma}{rest}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn injected_context_is_extracted_again() {
        let span = parse(PARENT, TraceState::from_str("a=1,b=2").unwrap()).unwrap();
        for (before, after) in [
            (None, format!("{{\"traceparent\":\"{PARENT}\",\"tracestate\":\"a=1,b=2\"}}")),
            (Some("{ }"), format!("{{\"traceparent\":\"{PARENT}\",\"tracestate\":\"a=1,b=2\" }}")),
            (Some("{\"x\":1}"), format!("{{\"traceparent\":\"{PARENT}\",\"tracestate\":\"a=1,b=2\",\"x\":1}}")),
        ] {
            let before = before.map(raw);
            let metadata = inject_context(before.as_deref(), &span).unwrap();
            assert_eq!(metadata.get(), after);
            assert_eq!(extract_context(&metadata), Some(span.clone()));
        }
    }

    #[test]
    fn existing_context_is_not_replaced() {
        let span = parse(PARENT, TraceState::default()).unwrap();
        for text in ["{\"traceparent\":\"anything\"}", "[]", "1", "{\"traceparent\":1}"] {
            assert!(inject_context(Some(&raw(text)), &span).is_none(), "{text}");
        }
    }

    #[test]
    fn invalid_traceparent_is_ignored() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let long = format!("{PARENT}-more");
        for bad in ["", "00-1-2-01", zero, &long, &PARENT.replacen("00", "ff", 1), &PARENT.replace("4bf", "xyz")] {
            assert!(parse(bad, TraceState::default()).is_none(), "{bad}");
        }
        assert!(parse(&long.replacen("00", "01", 1), TraceState::default()).is_some());
    }
}
