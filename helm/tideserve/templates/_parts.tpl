{{/* Small things that the objects around the RayService share. */}}

{{/*
The longest that a client may hear nothing of its request, in seconds: one that is not streamed waits for a replica and
then for its whole answer. Arguments: the root. The cold wait's default is that of serve_app/settings/knobs.py.
*/}}
{{- define "tideserve.longestSilence" -}}
{{- $longest := 0.0 -}}
{{- range $key, $model := default dict .Values.models -}}
{{- $knobs := default dict $model.autoscaling -}}
{{- $longest = maxf $longest (default 600 $knobs.cold_wait_timeout_s | float64) -}}
{{- end -}}
{{- ceil (addf $longest (float64 .Values.app.drain_timeout_s)) | int -}}
{{- end -}}

{{/* The model that NOTES.txt and `helm test` ask: `tests.model`, or the first that generates text. Nothing if none does. */}}
{{- define "tideserve.demoModel" -}}
{{- $chosen := .Values.tests.model -}}
{{- range $key := keys (default dict .Values.models) | sortAlpha -}}
{{- $model := get $.Values.models $key -}}
{{- if and (not $chosen) (eq (default "generate" $model.task) "generate") -}}
{{- $chosen = default $key $model.name -}}
{{- end -}}
{{- end -}}
{{- $chosen -}}
{{- end -}}

{{/*
What the download Job is to load, as arguments of `serve_app.weights.download`, as a YAML list. Paths, the embedded model
and addresses of other stores are not on the hub. A tokenizer of its own has the model's revision where nothing says
otherwise, as vLLM has it. Arguments: root, profile (any if empty), cache (its key in tideserve.caches).
*/}}
{{- define "tideserve.downloads" -}}
{{- $profile := .profile -}}
{{- $id := "^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$" -}}
{{- $wanted := list -}}
{{- range $key, $model := default dict .root.Values.models -}}
{{- $cache := ternary $key "" (not (empty $model.modelCache)) -}}
{{- if and (or (not $profile) (eq $profile $model.gpuProfile)) (eq $cache (default "" $.cache)) -}}
{{- $weights := default "" $model.model -}}
{{- $extra := default dict $model.engine_args -}}
{{- if and (ne $weights "embedded") (regexMatch $id $weights) -}}
{{- $wanted = append $wanted (include "tideserve.pinned" (list $weights $model.revision)) -}}
{{- end -}}
{{- $tokenizer := default "" $model.tokenizer -}}
{{- if and $tokenizer (ne $tokenizer $weights) (regexMatch $id $tokenizer) -}}
{{- $revision := default $model.revision $extra.tokenizer_revision -}}
{{- $wanted = append $wanted (printf "--tokenizer=%s" (include "tideserve.pinned" (list $tokenizer $revision))) -}}
{{- end -}}
{{- $speculative := default dict $extra.speculative_config -}}
{{- $draft := default "" $speculative.model -}}
{{- if and $draft (regexMatch $id $draft) -}}
{{- $wanted = append $wanted (include "tideserve.pinned" (list $draft $speculative.revision)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $wanted | uniq | sortAlpha | toYaml -}}
{{- end -}}

{{/* MODEL, or MODEL@REVISION. Arguments: a list of both. */}}
{{- define "tideserve.pinned" -}}
{{- if index . 1 -}}
{{- printf "%s@%s" (index . 0) (toString (index . 1)) -}}
{{- else -}}
{{- index . 0 -}}
{{- end -}}
{{- end -}}
