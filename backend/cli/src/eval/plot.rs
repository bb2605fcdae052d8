//! The picture of `--plot`: accuracy against what it costs.

use std::error::Error as StdError;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::score::Score;

const SIZE: (u32, u32) = (1500, 520);
const FONT: &str = "sans-serif";
const POINT_RADIUS: i32 = 4;

/// One picture: what is on the x axis.
struct Panel {
    title: &'static str,
    cost: fn(&Score) -> f64,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "rows per token kept",
        cost: |score| score.totals.per_token(score.totals.rows()),
    },
    Panel {
        title: "milliseconds per token kept, this machine",
        cost: |score| 1e3 * score.totals.per_token(score.totals.seconds_total),
    },
    Panel {
        title: "milliseconds per token kept, by the npu cost table",
        cost: |score| 1e3 * score.totals.per_token(score.totals.seconds_npu),
    },
];

/// Returns an SVG picture with a panel each for rows, measured time and time by the `npu` cost table. A point is a variant,
/// with its number in the CSV file; its colour is the mode's.
pub(crate) fn svg(scores: &[Score]) -> String {
    let mut picture = String::new();
    draw(&mut picture, scores).expect("drawing into memory cannot fail");
    picture
}

fn draw(picture: &mut String, scores: &[Score]) -> Result<(), Box<dyn StdError>> {
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((1, PANELS.len()));
    for (area, panel) in panels.iter().zip(&PANELS) {
        draw_panel(area, panel, scores)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    panel: &Panel,
    scores: &[Score],
) -> Result<(), Box<dyn StdError>> {
    let costs = range(scores.iter().map(panel.cost), 0.0);
    let accuracies = range(scores.iter().map(|score| score.overall.accuracy), 0.002);
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(costs, accuracies)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(panel.title)
        .y_desc("accuracy")
        .label_style((FONT, 13))
        .draw()?;
    for (index, mode) in modes(scores).into_iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points = || {
            (1..)
                .zip(scores)
                .filter(|(_, score)| score.mode == mode)
                .map(|(number, score)| (number, (panel.cost)(score), score.overall.accuracy))
        };
        chart
            .draw_series(
                points().map(|(_, x, y)| Circle::new((x, y), POINT_RADIUS, colour.filled())),
            )?
            .label(mode)
            .legend(move |(x, y)| Circle::new((x + 8, y), POINT_RADIUS, colour.filled()));
        chart.draw_series(points().map(|(number, x, y)| {
            EmptyElement::at((x, y))
                + Text::new(
                    format!("{number}"),
                    (6, -12),
                    (FONT, 11).into_font().color(&BLACK),
                )
        }))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

/// Returns the modes in the order of their first variant.
fn modes(scores: &[Score]) -> Vec<&str> {
    let mut modes: Vec<&str> = Vec::new();
    for score in scores {
        if !modes.contains(&score.mode.as_str()) {
            modes.push(&score.mode);
        }
    }
    modes
}

/// Returns a range that holds all values with some air around them, `least` at least on either side.
fn range(values: impl Iterator<Item = f64>, least: f64) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return 0.0..1.0;
    }
    let air = (0.08 * (high - low))
        .max(least)
        .max(1e-3 * high.abs())
        .max(1e-9);
    low - air..high + air
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn a_range_is_never_empty() {
        for values in [&[][..], &[0.0], &[5.0, 5.0], &[-1.0, 3.0]] {
            let found = range(values.iter().copied(), 0.0);
            assert!(found.start < found.end, "{values:?}: {found:?}");
            assert!(values.iter().all(|value| found.contains(value)));
        }
    }
}
