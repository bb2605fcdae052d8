//! Who is busy when: a picture, or Chrome's trace format.

use std::error::Error as StdError;
use std::path::Path;

use ggml_llada_npu::simulate::{Resource, Row, Setting, Span, Work};
use plotters::prelude::*;
use serde::Serialize;

use super::table::heading;
use crate::error::Error;
use crate::files::NewFile;

/// Forwards in the picture: enough to see that they repeat.
const SHOWN: std::ops::Range<u32> = 1..4;
const SIZE: (u32, u32) = (1600, 320);
const FONT: &str = "sans-serif";

/// The file to write, and how.
pub(super) struct File<'a> {
    file: NewFile<'a>,
    is_picture: bool,
}

impl<'a> File<'a> {
    /// Opens the file; its name says what is written.
    ///
    /// # Errors
    /// [`Error::Value`] for another ending than .svg and .json, [`Error::File`].
    pub(super) fn create(path: &'a Path) -> Result<Self, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str());
        let is_picture = match ending.map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => true,
            Some("json") => false,
            _ => {
                return Err(Error::Value {
                    flag: "--timeline",
                    value: path.display().to_string(),
                    expected: "a file name that ends in .svg or .json".to_owned(),
                });
            }
        };
        Ok(Self {
            file: NewFile::create(path)?,
            is_picture,
        })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn write(self, setting: &Setting, row: &Row) -> Result<(), Error> {
        let spans = row.outcome.timeline.spans();
        self.file.write(&if self.is_picture {
            let heading = format!(
                "{}; {}, forwards {} to {}",
                heading(setting, None),
                row.stage.name(),
                SHOWN.start,
                SHOWN.end - 1
            );
            svg(&heading, spans)
        } else {
            chrome(setting, spans)
        })
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ChromeTrace<'a> {
    trace_events: Vec<ChromeEvent<'a>>,
    display_time_unit: &'static str,
    other_data: ChromeNote,
}

#[derive(Debug, Serialize)]
struct ChromeNote {
    simulated: String,
}

#[derive(Debug, Serialize)]
struct ChromeEvent<'a> {
    name: &'a str,
    ph: &'static str,
    pid: u32,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: ChromeArgs<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ChromeArgs<'a> {
    Thread { name: &'static str },
    Span { forward: u32, segment: &'a str },
}

fn lane(resource: Resource) -> usize {
    Resource::ALL
        .iter()
        .position(|&other| other == resource)
        .unwrap_or(0)
}

/// Returns what Chrome's tracing page and Perfetto read: times in microseconds.
fn chrome(setting: &Setting, spans: &[Span]) -> String {
    let threads = Resource::ALL.into_iter().map(|resource| ChromeEvent {
        name: "thread_name",
        ph: "M",
        pid: 1,
        tid: lane(resource),
        ts: None,
        dur: None,
        args: ChromeArgs::Thread {
            name: resource.name(),
        },
    });
    let spans = spans.iter().map(|span| {
        let block = &setting.shape.blocks[span.segment as usize].name;
        let is_part = matches!(span.work, Work::Map | Work::Copy) || span.resource == Resource::Npu;
        ChromeEvent {
            name: span.work.name(),
            ph: "X",
            pid: 1,
            tid: lane(span.resource),
            ts: Some(span.start_s * 1e6),
            dur: Some((span.end_s - span.start_s) * 1e6),
            args: ChromeArgs::Span {
                forward: span.forward,
                segment: if is_part { block } else { "all" },
            },
        }
    });
    let trace = ChromeTrace {
        trace_events: threads.chain(spans).collect(),
        display_time_unit: "ms",
        other_data: ChromeNote {
            simulated: heading(setting, None),
        },
    };
    serde_json::to_string(&trace).expect("names and numbers always serialise") + "\n"
}

/// Returns an SVG picture of a few forwards: a lane per resource, a box per piece of work.
fn svg(heading: &str, spans: &[Span]) -> String {
    let mut picture = String::new();
    draw(&mut picture, heading, spans).expect("drawing into memory cannot fail");
    picture
}

fn colour(work: Work) -> RGBColor {
    match work {
        Work::Run => RGBColor(90, 140, 200),
        Work::Map => RGBColor(210, 90, 80),
        Work::Copy => RGBColor(235, 160, 80),
        Work::Revision => RGBColor(110, 170, 100),
        Work::Sample => RGBColor(150, 120, 190),
    }
}

fn draw(picture: &mut String, heading: &str, spans: &[Span]) -> Result<(), Box<dyn StdError>> {
    let shown = || spans.iter().filter(|span| SHOWN.contains(&span.forward));
    let start = shown()
        .map(|span| span.start_s)
        .fold(f64::INFINITY, f64::min);
    let end = shown().map(|span| span.end_s).fold(0.0, f64::max);
    let (start, end) = if start < end {
        (start, end)
    } else {
        (0.0, 1.0)
    };
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .caption(heading, (FONT, 14))
        .x_label_area_size(36)
        .y_label_area_size(70)
        .build_cartesian_2d(start..end, (0..Resource::ALL.len()).into_segmented())?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(lane) => Resource::ALL
            .get(*lane)
            .map_or("", |resource| resource.name())
            .to_owned(),
        SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_desc("seconds, simulated")
        .y_label_formatter(&name)
        .label_style((FONT, 13))
        .draw()?;
    for work in [
        Work::Run,
        Work::Map,
        Work::Copy,
        Work::Revision,
        Work::Sample,
    ] {
        let boxes = shown().filter(|span| span.work == work).map(|span| {
            let lane = lane(span.resource);
            let corners = [
                (span.start_s, SegmentValue::Exact(lane)),
                (span.end_s, SegmentValue::Exact(lane + 1)),
            ];
            let mut shape = Rectangle::new(corners, colour(work).filled());
            shape.set_margin(6, 6, 0, 0);
            shape
        });
        chart
            .draw_series(boxes)?
            .label(work.name())
            .legend(move |(x, y)| {
                Rectangle::new([(x, y - 6), (x + 14, y + 6)], colour(work).filled())
            });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 13))
        .draw()?;
    area.present()?;
    Ok(())
}
