{{/* Values that break the table in files/values-rules.yaml, one a line: key, value, bound. */}}
{{- define "tideserve.checks.values" -}}
{{- $table := .Files.Get "files/values-rules.yaml" | fromYaml -}}
{{- range $rule := $table.rules -}}
{{- $bound := ternary (get $table.formats (default "" $rule.format)) $rule (hasKey $rule "format") -}}
{{- range $path := $rule.at -}}
{{- /* A model may have a cache of its own. */ -}}
{{- range $above := ternary (list "" "models.*.") (list "") (hasPrefix "modelCache." $path) -}}
{{- range $found := fromJsonArray (include "tideserve.find" (dict "value" $.Values "path" (splitList "." (print $above $path)) "at" "")) -}}
{{- $value := toString $found.value -}}
{{- if not (or (and (eq $value "") (not $rule.required)) (not (regexMatch (default "" $rule.where) $value)) (regexMatch $bound.pattern $value)) }}
{{ $found.at }} = {{ toJson $found.value }} {{ $bound.says }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The values at a path of the table, each with its key, as a JSON list. Arguments: value, path (a list of steps), at (the
key so far).
*/}}
{{- define "tideserve.find" -}}
{{- $found := list -}}
{{- $step := first .path -}}
{{- $at := .at -}}
{{- $below := dict -}}
{{- if not .path -}}
{{- $found = list (dict "at" $at "value" .value) -}}
{{- else if eq $step "~" -}}
{{- range $key := keys (default dict .value) | sortAlpha -}}
{{- $found = append $found (dict "at" (printf "a key of %s" $at) "value" $key) -}}
{{- end -}}
{{- else if and (eq $step "*") (kindIs "slice" .value) -}}
{{- range $index, $item := .value -}}
{{- $_ := set $below (printf "%s[%d]" $at $index) $item -}}
{{- end -}}
{{- else if kindIs "map" .value -}}
{{- range $key, $item := ternary .value (pick .value $step) (eq $step "*") -}}
{{- $_ := set $below (printf "%s.%s" $at $key | trimPrefix ".") $item -}}
{{- end -}}
{{- end -}}
{{- range $name, $item := $below -}}
{{- if not (kindIs "invalid" $item) -}}
{{- $found = concat $found (fromJsonArray (include "tideserve.find" (dict "value" $item "path" (rest $.path) "at" $name))) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
