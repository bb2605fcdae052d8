//! The file of `--csv`: a line per variant.

use csv::Writer;

use super::score::Score;
use crate::statistics::Difference;

/// Returns the lines; `differences` are those between each variant and the first.
pub(crate) fn text(scores: &[Score], differences: &[Difference]) -> String {
    let mut writer = Writer::from_writer(Vec::new());
    let kinds: Vec<&String> = scores
        .first()
        .map(|score| score.tasks.keys().collect())
        .unwrap_or_default();
    let mut header: Vec<String> = [
        "n",
        "variant",
        "mode",
        "options",
        "tasks",
        "accuracy",
        "low95",
        "high95",
        "minus_first",
        "minus_first_low95",
        "minus_first_high95",
    ]
    .map(str::to_owned)
    .to_vec();
    header.extend(kinds.iter().map(|kind| format!("accuracy_{kind}")));
    let columns = scores.first().map(|score| score.totals.columns());
    header.extend(columns.iter().flatten().map(|(name, _)| (*name).to_owned()));
    let never_fails = "writing to memory cannot fail";
    writer.write_record(&header).expect(never_fails);
    for (number, (score, difference)) in (1..).zip(scores.iter().zip(differences)) {
        let options: Vec<String> = score
            .options
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let mut record = vec![
            format!("{number}"),
            score.name.clone(),
            score.mode.clone(),
            options.join(" "),
            score.overall.n.to_string(),
        ];
        let numbers = [
            score.overall.accuracy,
            score.overall.low,
            score.overall.high,
            difference.difference,
            difference.low,
            difference.high,
        ];
        record.extend(numbers.map(|number| format!("{number:.6}")));
        let by_kind = kinds
            .iter()
            .map(|kind| score.tasks.get(*kind).map_or(0.0, |task| task.accuracy));
        record.extend(by_kind.map(|accuracy| format!("{accuracy:.6}")));
        record.extend(score.totals.columns().map(|(_, value)| value));
        writer.write_record(&record).expect(never_fails);
    }
    let bytes = writer.into_inner().expect(never_fails);
    String::from_utf8(bytes).expect("names and numbers are UTF-8")
}
