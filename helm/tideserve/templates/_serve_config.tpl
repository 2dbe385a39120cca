{{/* `serveConfigV2`: what config/*.yaml is for `serve deploy`, from values. Knobs change nothing but this text. */}}

{{- define "tideserve.serveConfig" -}}
{{- $models := list -}}
{{- $knobs := dict -}}
{{- range $key, $model := .Values.models -}}
{{- $settings := fromYaml (include "tideserve.modelSettings" (dict "root" $ "key" $key "model" $model)) -}}
{{- $models = append $models $settings -}}
{{- if $model.autoscaling -}}
{{- $_ := set $knobs $settings.name $model.autoscaling -}}
{{- end -}}
{{- end -}}
{{- $app := .Values.app -}}
{{- $http := deepCopy (default dict $app.http) -}}
{{- if include "tideserve.apiKeysSecret" . -}}
{{- $_ := set $http "api_keys_file" "/etc/tideserve/secrets/api-keys" -}}
{{- end -}}
{{- $ingress := deepCopy (omit $app.ingress "autoscaling") -}}
{{- $_ := set $ingress "resources" (dict (include "tideserve.slots" "ingress") 1) -}}
{{- $args := dict "models" $models "ingress" $ingress -}}
{{- if $app.profile -}}{{- $_ := set $args "profile" $app.profile -}}{{- end -}}
{{- if $http -}}{{- $_ := set $args "http" $http -}}{{- end -}}
{{- if not $app.ui -}}{{- $_ := set $args "ui" false -}}{{- end -}}
{{- if not $app.zygote -}}{{- $_ := set $args "zygote" false -}}{{- end -}}
{{- if $app.request_log -}}{{- $_ := set $args "request_log" (deepCopy $app.request_log) -}}{{- end -}}
{{- $_ := set $args "ledger" (deepCopy $app.ledger) -}}
{{- $batch := deepCopy $app.batch -}}
{{- /* A share of the head's, so that the runner of a new application fits beside the one that ends. */ -}}
{{- if $batch.enabled }}{{- $_ := set $batch "resources" (dict "batch-runner" 0.001) -}}{{ end -}}
{{- $_ := set $args "batch" $batch -}}
{{- if $app.telemetry -}}{{- $_ := set $args "telemetry" (deepCopy $app.telemetry) -}}{{- end -}}
{{- $live := dict "autoscaling" (deepCopy $knobs) -}}
{{- if $app.ingress.autoscaling -}}{{- $_ := set $live "ingress" (deepCopy $app.ingress.autoscaling) -}}{{- end -}}
{{- include "tideserve.wholeNumbers" $args -}}
{{- include "tideserve.wholeNumbers" $live -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
  port: 8000
applications:
  - name: tideserve
    route_prefix: /
    import_path: serve_app.app:build
    autoscaling_policy:
      policy_function: serve_app.controller.serve_policy:ServePolicy
    args:
      {{- toYaml $args | nindent 6 }}
    deployments:
      - name: Ingress
        user_config:
          {{- toYaml $live | nindent 10 }}
{{- end -}}

{{/* An entry of `args.models`. Arguments: root, key, model. */}}
{{- define "tideserve.modelSettings" -}}
{{- $given := . -}}
{{- $settings := fromYaml (include "tideserve.placedSettings" .) -}}
{{- $variants := list -}}
{{- range $index, $engine := fromYamlArray (include "tideserve.engines" .model) -}}
{{- if lt $index (len (default list $given.model.variants)) -}}
{{- $placed := fromYaml (include "tideserve.placedSettings" (dict "root" $given.root "key" $given.key "model" $engine)) -}}
{{- $own := deepCopy (omit (index $given.model.variants $index) "gpuProfile") -}}
{{- $variants = append $variants (merge $own (pick $placed "device" "accelerator_type" "resources")) -}}
{{- end -}}
{{- end -}}
{{- if $variants }}{{- $_ := set $settings "variants" $variants -}}{{ end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* The settings of a model with its device and resources, without variants of their own. Arguments: root, key, model. */}}
{{- define "tideserve.placedSettings" -}}
{{- $profile := get .root.Values.gpuProfiles .model.gpuProfile -}}
{{- $settings := deepCopy (omit .model "gpuProfile" "autoscaling" "modelCache") -}}
{{- $placed := dict "name" .key "device" $profile.device "drain_timeout_s" .root.Values.app.drain_timeout_s -}}
{{- $settings = merge $settings $placed -}}
{{- if eq $profile.device "gpu" -}}
{{- $_ := set $settings "accelerator_type" (default nil $profile.accelerator_type) -}}
{{- end -}}
{{- $slots := include "tideserve.slots" (include "tideserve.groupOf" .) -}}
{{- $taken := 1.0 -}}
{{- if eq $profile.device "cpu" -}}
{{- $taken = ternary $settings.cpus_per_replica 1 (hasKey $settings "cpus_per_replica") | float64 | maxf 0.001 -}}
{{- end -}}
{{- $_ := set $settings "resources" (dict $slots $taken) -}}
{{- toYaml $settings -}}
{{- end -}}

{{/*
Turns floats that are whole numbers into integers, in place: Helm reads every number as a float, and would write
128 MiB as 1.34217728e+08. Works on mappings and what is in their lists.
*/}}
{{- define "tideserve.wholeNumbers" -}}
{{- $mapping := . -}}
{{- range $key, $value := $mapping -}}
{{- if kindIs "float64" $value -}}
{{- if eq (floor $value) $value -}}
{{- $_ := set $mapping $key (int64 $value) -}}
{{- end -}}
{{- else if kindIs "map" $value -}}
{{- include "tideserve.wholeNumbers" $value -}}
{{- else if kindIs "slice" $value -}}
{{- range $value -}}
{{- if kindIs "map" . -}}
{{- include "tideserve.wholeNumbers" . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
