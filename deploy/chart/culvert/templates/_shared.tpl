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

{{/*
Whether a kubelet may write this label of its own Node: "true", or nothing. The argument is the label. These are the rules
of the admission plugin NodeRestriction, the same since Kubernetes 1.20: a label is the kubelet's unless its prefix is
reserved for Kubernetes, and of those some are the kubelet's too.
*/}}
{{- define "culvert.kubeletMayWrite" -}}
{{- $reserved := regexMatch "^([a-z0-9.-]+[.])?(kubernetes|k8s)[.]io/" . -}}
{{- $kubelets := regexMatch "^([a-z0-9.-]+[.])?(node|kubelet)[.]kubernetes[.]io/" . -}}
{{- $named := list "kubernetes.io/hostname" "kubernetes.io/os" "kubernetes.io/arch" -}}
{{- $named = concat $named (list "beta.kubernetes.io/os" "beta.kubernetes.io/arch" "beta.kubernetes.io/instance-type") -}}
{{- $named = concat $named (list "topology.kubernetes.io/zone" "topology.kubernetes.io/region") -}}
{{- $named = concat $named (list "failure-domain.beta.kubernetes.io/zone" "failure-domain.beta.kubernetes.io/region") -}}
{{- if or (not $reserved) $kubelets (has . $named) }}true{{ end -}}
{{- end }}
