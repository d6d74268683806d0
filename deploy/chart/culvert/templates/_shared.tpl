{{/* The labels of what belongs to a program: its name is the argument. */}}
{{- define "culvert.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: culvert
{{- end }}

{{/* The image of a program. Arguments: .root, and .image, the value `image` of the program. */}}
{{- define "culvert.image" -}}
{{- with .root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image.name -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* What every pod has of the image's values. */}}
{{- define "culvert.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ quote . }}
{{- end }}
{{- end }}
{{- end }}

{{/* NODE_IP, for flags that need the address of the node. */}}
{{- define "culvert.nodeIP" -}}
- name: NODE_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}
