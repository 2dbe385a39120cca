{{/* Values against the table in files/values-rules.yaml, as a YAML list of sentences: key, value, bound. */}}
{{- define "tideserve.checks.values" -}}
{{- $problems := list -}}
{{- $table := .Files.Get "files/values-rules.yaml" | fromYaml -}}
{{- range $rule := $table.rules -}}
{{- $bound := ternary (get $table.formats (default "" $rule.format)) $rule (hasKey $rule "format") -}}
{{- range $path := $rule.at -}}
{{- range $found := fromJsonArray (include "tideserve.find" (dict "value" $.Values "path" (splitList "." $path) "at" "")) -}}
{{- $value := $found.value -}}
{{- if hasKey $bound "pattern" -}}
{{- if not (or (and (eq (toString $value) "") (not $rule.required)) (regexMatch $bound.pattern (toString $value))) -}}
{{- $problems = append $problems (printf "%s = %s %s" $found.at (toJson $value) $bound.says) -}}
{{- end -}}
{{- else if not (or (kindIs "string" $value) (and (ge (float64 $value) (float64 $bound.least)) (le (float64 $value) (float64 (default 9e18 $bound.most))))) -}}
{{- $problems = append $problems (printf "%s = %v must be at least %v%s" $found.at (int64 $value) $bound.least (ternary (printf " and at most %v" $bound.most) "" (hasKey $bound "most"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $problems -}}
{{- end -}}

{{/*
The values at a path of the table, each with its key, as a JSON list. Arguments: value, path (a list of steps), at (the
key so far).
*/}}
{{- define "tideserve.find" -}}
{{- $found := list -}}
{{- if not .path -}}
{{- $found = list (dict "at" .at "value" .value) -}}
{{- else -}}
{{- $step := first .path -}}
{{- $rest := rest .path -}}
{{- $at := .at -}}
{{- if eq $step "~" -}}
{{- range $key := keys (default dict .value) | sortAlpha -}}
{{- $found = append $found (dict "at" (printf "a key of %s" $at) "value" $key) -}}
{{- end -}}
{{- else if eq $step "*" -}}
{{- if or (kindIs "map" .value) (kindIs "slice" .value) -}}
{{- range $key, $below := .value -}}
{{- if not (kindIs "invalid" $below) -}}
{{- $name := ternary (printf "%s[%v]" $at $key) (printf "%s.%v" $at $key) (kindIs "int" $key) -}}
{{- $found = concat $found (fromJsonArray (include "tideserve.find" (dict "value" $below "path" $rest "at" $name))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "map" .value -}}
{{- $below := get .value $step -}}
{{- if and (hasKey .value $step) (not (kindIs "invalid" $below)) -}}
{{- $name := ternary $step (printf "%s.%s" $at $step) (eq $at "") -}}
{{- $found = fromJsonArray (include "tideserve.find" (dict "value" $below "path" $rest "at" $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
