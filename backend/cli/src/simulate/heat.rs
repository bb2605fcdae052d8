//! The picture of `--sweep sensitivity --plot`: which technique is missed most, and how much.

use std::error::Error as StdError;

use ggml_llada_npu::simulate::sweep::{BUDGET_GIB, MAP_S_PER_GB, PER_STEP, Technique, Worth};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (1500, 520);
const TITLE_HEIGHT: u32 = 64;
const FONT: &str = "sans-serif";

/// Returns an SVG picture: a panel per address space, a cell per map cost and tokens per step. The colour is that of the
/// technique without which it takes longest, the number says how many times longer.
pub(super) fn svg(heading: &str, points: &[Worth]) -> String {
    let mut picture = String::new();
    draw(&mut picture, heading, points).expect("drawing into memory cannot fail");
    picture
}

fn colour(technique: Technique) -> RGBColor {
    match technique {
        Technique::MemoryRuntime => RGBColor(127, 178, 220),
        Technique::Mbsd => RGBColor(240, 190, 110),
        Technique::Revision => RGBColor(150, 205, 140),
    }
}

fn draw(picture: &mut String, heading: &str, points: &[Worth]) -> Result<(), Box<dyn StdError>> {
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    title.draw(&Text::new(heading, (16, 8), (FONT, 14)))?;
    let mut x = 16;
    for technique in Technique::ALL {
        title.draw(&Rectangle::new(
            [(x, 36), (x + 16, 52)],
            colour(technique).filled(),
        ))?;
        let label = format!("missed most: {}", technique.name());
        title.draw(&Text::new(label, (x + 22, 38), (FONT, 14)))?;
        x += 260;
    }
    let panels = body.split_evenly((1, BUDGET_GIB.len()));
    for (area, budget) in panels.iter().zip(BUDGET_GIB) {
        draw_panel(area, budget, points)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    budget: f64,
    points: &[Worth],
) -> Result<(), Box<dyn StdError>> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{budget} GiB"), (FONT, 16))
        .x_label_area_size(40)
        .y_label_area_size(48)
        .build_cartesian_2d(
            (0..MAP_S_PER_GB.len() - 1).into_segmented(),
            (0..PER_STEP.len() - 1).into_segmented(),
        )?;
    let name = |values: &'static [f64], at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(index) => values.get(*index).map_or(String::new(), f64::to_string),
        SegmentValue::Exact(_) | SegmentValue::Last => String::new(),
    };
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("seconds to map a GB")
        .y_desc("tokens per step")
        .x_label_formatter(&|at| name(&MAP_S_PER_GB, at))
        .y_label_formatter(&|at| name(&PER_STEP, at))
        .label_style((FONT, 13))
        .draw()?;
    let index = |values: &[f64], value: f64| {
        values
            .iter()
            .position(|&other| other.total_cmp(&value).is_eq())
    };
    for point in points
        .iter()
        .filter(|point| point.budget_gib.total_cmp(&budget).is_eq())
    {
        let (Some(x), Some(y)) = (
            index(&MAP_S_PER_GB, point.map_s_per_gb),
            index(&PER_STEP, point.per_step),
        ) else {
            continue;
        };
        let corner = |x, y| (SegmentValue::Exact(x), SegmentValue::Exact(y));
        let cell = [corner(x, y), corner(x + 1, y + 1)];
        chart.draw_series([Rectangle::new(cell, colour(point.wins()).filled())])?;
        let gain = point.gains.into_iter().fold(0.0, f64::max);
        let centre = (SegmentValue::CenterOf(x), SegmentValue::CenterOf(y));
        let label =
            EmptyElement::at(centre) + Text::new(format!("{gain:.1}x"), (-14, -7), (FONT, 14));
        chart.draw_series([label])?;
    }
    Ok(())
}
