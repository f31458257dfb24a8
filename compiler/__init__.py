"""PockFarm's training compiler: model bytes, a sparse plan and a spec in; a training bundle out."""
